"""Use of a trained initialisation by a client: adapt it to own images, predict, and save the result in one file."""

from dpfedmeta.training.personal.personal_model import Initialisation, PersonalModel, load, load_personal

__all__ = ["Initialisation", "PersonalModel", "load", "load_personal"]
