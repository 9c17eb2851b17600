import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage.decoded_cache import SPLITS, ClassEntry, Contents, check_classes


def entries(*splits, images=2):
    return tuple(ClassEntry(name=f"{split}{number}", split=split, images=images) for number, split in enumerate(splits))


def test_sound_classes_pass_and_are_counted():
    classes = entries(*SPLITS, "train")
    check_classes("here", classes)
    assert Contents(classes=classes, decode=lambda: iter(())).images == 8


@pytest.mark.parametrize(
    ("classes", "reason"),
    [
        ((), "no class with images"),
        (
            (*entries(*SPLITS), ClassEntry(name="train0", split="test", images=1)),
            "the splits overlap: .*train0, in train and test",
        ),
        (entries(*SPLITS, images=0), "3 class.* without an image .first: train0"),
        (entries("train", "test"), "no class in the val split"),
    ],
)
def test_what_no_episode_could_be_drawn_from_is_refused(classes, reason):
    with pytest.raises(InputError, match=f"^here: {reason}"):
        check_classes("here", classes)
