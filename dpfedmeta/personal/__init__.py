"""What a client does with a trained initialisation: adapt it to own images, predict, keep the result in one file."""

from dpfedmeta.personal.initialisation import Initialisation, load
from dpfedmeta.personal.model import PersonalModel, load_personal

__all__ = ["Initialisation", "PersonalModel", "load", "load_personal"]
