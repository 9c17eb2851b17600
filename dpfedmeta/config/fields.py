"""Types of setting values, and their error messages, shared by all tables of settings."""

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from dpfedmeta.core.errors import InputError

# In Python "0.3" is no number and True is none either; YAML reads `1e-4` as text, so files are read less strictly.
STRICT = ConfigDict(extra="forbid", strict=True)
_Form = TypeVar("_Form", bound=type)


def explained(place: str) -> Callable[[_Form], _Form]:
    """A wrong value is refused when the table is built, in the words of the command line.

    Args:
        place: What comes before a setting's name: `clip.` of ClipSettings; nothing for a table that is no section.
    """

    def explain(form: _Form) -> _Form:
        checked: Callable[..., None] = form.__init__  # type: ignore[misc]

        @wraps(checked)
        def init(self: object, *positional: object, **values: object) -> None:
            try:
                checked(self, *positional, **values)
            except ValidationError as error:
                raise InputError(problem(form, error, place)) from None

        form.__init__ = init  # type: ignore[misc]
        return form

    return explain


def problem(form: type, error: ValidationError, place: str) -> str:
    """Describe what is wrong with a table that was built by hand, by the full name of the setting."""
    from dpfedmeta.core.pydantic_errors import first_problem  # for errors alone

    words = first_problem(error, form, place)
    hint = getattr(form, "missing_words", None)
    return f"{words}; {hint}" if hint and error.errors()[0]["type"] == "missing" else words


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# Between the bounds that a policy may give, with room for how far it may leave C_0 (privacy.clip_policy).
ClipBound = Annotated[float, Field(ge=1e-15, le=1e15)]
# e^epsilon is how much more likely one world may be than the other: above, nothing is promised; below, nothing learned.
LEAST_EPSILON, MOST_EPSILON = 1e-6, 1e5


def _useful(epsilon: float) -> float:
    if epsilon > MOST_EPSILON:
        raise ValueError(
            f"a target above {MOST_EPSILON:g} gives no useful protection; choose about 0.1 to 10, or use --algo maml "
            "to train without privacy"
        )
    if epsilon < LEAST_EPSILON:
        raise ValueError(f"with a target below {LEAST_EPSILON:g} nothing can be learned; choose about 0.1 to 10")
    return epsilon


Epsilon = Annotated[Positive, AfterValidator(_useful)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Far more than any run could hold; a number of a thousand digits is a damaged file.
MOST = 10**12
Count = Annotated[int, Field(ge=1, le=MOST)]
# Words as on the command line of W&B and in WANDB_TAGS: commas between them; in YAML also as a list.
Words = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=64)], ...],
    BeforeValidator(lambda given: tuple(_words(given)) if isinstance(given, str | list) else given),
]
# Folders, commas between them; in YAML also as a list.
Folders = Annotated[
    tuple[Annotated[str, Field(min_length=1)], ...],
    BeforeValidator(lambda given: tuple(_words(given)) if isinstance(given, str | list) else given),
]
Probability = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _words(given: str | list[Any]) -> list[Any]:
    return [word.strip() for word in given.split(",") if word.strip()] if isinstance(given, str) else given
