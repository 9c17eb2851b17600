"""Use of a trained initialisation by a client: adapt it to own images, predict, and save the result in one file."""

from dpfedmeta.training.personal.personal_model import PersonalModel, load_personal
from dpfedmeta.training.personal.trained_initialisation import Initialisation, load

__all__ = ["Initialisation", "PersonalModel", "load", "load_personal"]
