"""Images for token selection: files that are broken are refused in words, canvases depend on seed and number alone."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from downloaded import COMMIT
from sinklens.errors import UsageError
from sinklens.selection.canvases import CanvasMaker, Scene
from sinklens.selection.data import FASHION, Images, foreground_share, load_epochs, load_images
from sinklens.selection.idx_files import read_idx, read_part
from sinklens.selection.image_files import read_image
from sinklens.selection.splits import part_for, split_of

needs_fashion = pytest.mark.skipif(not FASHION.is_dir(), reason="Fashion-MNIST: apt install dataset-fashion-mnist")


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_set(folder: Path, count: int = 40, *, zipped: bool = True) -> None:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for part in ("train", "t10k"):
        images = rng.integers(0, 255, (count, 28, 28), dtype=np.uint8)
        labels = (np.arange(count) % 3).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = folder / f"{part}-{name}-ubyte"
            if zipped:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx(array)))
            else:
                path.write_bytes(idx(array))


# IDX files


@pytest.mark.parametrize("zipped", [False, True])
def test_an_idx_file_is_read(tmp_path: Path, zipped: bool) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    np.testing.assert_array_equal(read_idx(path), array)


GOOD = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))
ZIPPED = gzip.compress(GOOD, mtime=0)  # without the time of day, which would be in the names of tests


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"begins with b''; expected an IDX file"),
        (b"PK\3\4whatever", r"begins with b'PK.*; expected an IDX file of bytes"),
        (idx(np.zeros(3, np.uint8), kind=13), r"begins with .*expected an IDX file of bytes"),
        (GOOD[:9], r"ends within its header; get the file again"),
        (GOOD[:-1], r"should hold 24 bytes for an array \[2, 3, 4\], and holds only 23"),
        (GOOD + b"x", r"and holds more; get the file again"),
        (ZIPPED[:-12], r"is corrupt \(.*\); get the file again"),
        (ZIPPED[:-8] + b"\xff" * 8, r"is corrupt \(.*\); get the file again"),
        (bytes([0, 0, 8, 3]) + b"\xff" * 12, r"which is not believed; get the file again"),
    ],
)
def test_a_broken_idx_file_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_idx(path)


def test_missing_and_unequal_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*nowhere \(No such file"):
        read_idx(tmp_path / "nowhere")
    write_set(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UsageError, match=r"has no t10k labels; expected t10k-images-idx3-ubyte and t10k-labels"):
        read_part(tmp_path, "test")
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(7, np.uint8)))
    with pytest.raises(UsageError, match=r"holds \[40, 28, 28\] and t10k-labels-idx1-ubyte \[7\]; expected images"):
        read_part(tmp_path, "test")


def test_a_folder_of_idx_files_is_put_on_canvases(tmp_path: Path) -> None:
    write_set(tmp_path / "mine", 60, zipped=False)
    found = load_images(tmp_path / "mine", split="test", limit=5)
    assert found.images.shape == (5, 1, 64, 64) and found.classes == ("0", "1", "2")
    train, held = (load_images(tmp_path / "mine", split=split) for split in ("train", "validation"))
    assert (len(train), len(held)) == (54, 6)


# Folders and files of images


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    for name, count in (("shirt", 20), ("shoe", 10), ("bag", 10)):
        (tmp_path / "set" / name).mkdir(parents=True)
        for number in range(count):
            Image.fromarray(rng.integers(0, 255, (12, 12), dtype=np.uint8)).save(tmp_path / f"set/{name}/{number}.png")
    return tmp_path / "set"


def test_a_folder_of_images(folder: Path) -> None:
    parts = {split: load_images(folder, split=split) for split in ("train", "validation", "test")}
    assert {split: len(part) for split, part in parts.items()} == {"train": 32, "validation": 4, "test": 4}
    train = parts["train"]
    assert train.classes == ("bag", "shirt", "shoe") and train.labels.bincount().tolist() == [8, 16, 8]
    assert train.images.shape == (32, 1, 12, 12) and float(train.images.max()) <= 1 and train.foreground is None
    everyone = torch.cat([part.images for part in parts.values()]).flatten(1)
    assert len(torch.unique(everyone, dim=0)) == 40  # nothing twice, nothing left out
    assert torch.equal(load_images(folder, split="train", limit=3).images, train.images[:3])
    whole = sorted(np.asarray(Image.open(path)).sum() for path in folder.rglob("*.png"))
    assert sorted((everyone * 255).round().sum(dim=1).int().tolist()) == [int(total) for total in whole]


def test_adding_a_file_moves_no_other_class(folder: Path) -> None:
    before = load_images(folder, split="test")
    Image.new("L", (12, 12), 7).save(folder / "bag" / "new.png")
    after = load_images(folder, split="test")
    kept = [before.images[before.labels > 0], after.images[after.labels > 0]]
    assert torch.equal(*kept)


def test_folders_called_train_and_test_are_the_split(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "parted").mkdir()
    folder.rename(tmp_path / "parted" / "train")
    (tmp_path / "parted" / "test" / "bag").mkdir(parents=True)
    Image.new("L", (12, 12), 7).save(tmp_path / "parted" / "test" / "bag" / "a.png")
    sizes = [len(load_images(tmp_path / "parted", split=split)) for split in ("train", "validation", "test")]
    assert sizes == [36, 4, 1]


def test_wrong_sizes_and_modes_are_refused_or_fitted(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"has 12 x 12 pixels; expected 64 x 64: convert it, or have it fitted"):
        load_images(folder, size=64)
    assert load_images(folder, size=64, fit=True).images.shape == (32, 1, 64, 64)
    assert load_images(folder, channels=3).images.shape == (32, 3, 12, 12)  # grey to colour: nothing is lost
    for path in (folder / "bag").iterdir():
        Image.new("RGB", (12, 12), (255, 0, 0)).save(path)
    with pytest.raises(UsageError, match=r"bag/\d.png has the mode RGB; expected 1 channel \(L\), 8 bits each, opaque"):
        load_images(folder, channels=1)
    assert load_images(folder, channels=1, fit=True).images.shape == (32, 1, 12, 12)
    for path in (folder / "bag").iterdir():
        Image.new("L", (9, 12)).save(path)
    with pytest.raises(UsageError, match=r"has (9|12) x 12 pixels; expected (9|12) x 12"):
        load_images(folder)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [("RGBA", (200, 100, 50, 128), (100, 50, 25)), ("LA", (200, 128), (100,) * 3), ("I;16", 257 * 90, (90,) * 3)],
)
def test_transparent_and_deep_images_must_be_fitted(
    tmp_path: Path, mode: str, value: object, expected: tuple[int, ...]
) -> None:
    path = tmp_path / "image.png"
    Image.new(mode, (4, 4), value).save(path)
    with pytest.raises(UsageError, match=rf"has the mode {mode}.*; expected 3 channels \(RGB\), 8 bits each, opaque"):
        read_image(path, channels=3)
    np.testing.assert_allclose(read_image(path, channels=3, fit=True)[:, 0, 0], expected, atol=1)


def test_palettes_and_turned_photographs(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4), (10, 20, 30)).quantize(4).save(tmp_path / "palette.png")
    assert read_image(tmp_path / "palette.png")[:, 0, 0].tolist() == [10, 20, 30]
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned
    Image.new("L", (8, 4)).save(tmp_path / "turned.jpg", exif=exif)
    assert read_image(tmp_path / "turned.jpg").shape == (1, 8, 4)


def test_corrupt_and_foreign_files_are_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8)
    for name in ("a.png", "a.jpg"):
        path = tmp_path / name
        Image.fromarray(noise).save(path)
        path.write_bytes(path.read_bytes()[:-400])
        with pytest.raises(UsageError, match=rf"{name} is corrupt or cannot be read \(.*\); replace the file"):
            read_image(path)
    (tmp_path / "b.png").write_text("not an image")
    with pytest.raises(UsageError, match=r"b.png is no PNG or JPEG image, or is corrupt"):
        read_image(tmp_path / "b.png")
    with pytest.raises(UsageError, match=r"there is no file .*c.png; expected a PNG or JPEG image"):
        read_image(tmp_path / "c.png")
    Image.new("1", (9000, 9000)).save(tmp_path / "huge.png")
    with pytest.raises(UsageError, match=r"has 9000 x 9000 pixels; expected at most"):
        read_image(tmp_path / "huge.png")


def test_folders_without_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no subfolders; expected one for each class"):
        load_images(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty has no PNG or JPEG image; expected some"):
        load_images(tmp_path)
    Image.new("L", (4, 4)).save(tmp_path / "empty" / "one.png")
    with pytest.raises(UsageError, match=r"has no image left for test; expected three or more a class"):
        load_images(tmp_path, split="test")
    with pytest.raises(UsageError, match=r"one.png is a file; expected a folder"):
        load_images(tmp_path / "empty" / "one.png")


@pytest.mark.parametrize("limit", [0, -1, 2.5, True])
def test_names_splits_and_limits_that_cannot_be_meant(limit: object) -> None:
    with pytest.raises(UsageError, match=r"there are no images 'fashio'; expected one of 'fashion', 'digits'"):
        load_images("fashio")
    with pytest.raises(UsageError, match=r"unknown split 'dev'; expected one of 'train', 'validation', 'test'"):
        load_images("digits", split="dev")
    with pytest.raises(UsageError, match=r"limit is .*; expected a number of images, from 1"):
        load_images("digits", limit=limit)  # type: ignore[arg-type]


# Sets of the hub


class FakeHub:
    """What of `datasets` is used, with rows that `datasets` itself made."""

    def __init__(self, parts: tuple[str, ...], error: Exception | None = None) -> None:
        self.parts, self.error, self.asked = parts, error, list[str | None]()
        self.cache: Path | None = None  # the folder of the rows

    def get_dataset_split_names(self, name: str, configuration: str | None, *, revision: str | None) -> list[str]:
        if self.error is not None:
            raise self.error
        return list(self.parts)

    def load_dataset(self, name: str, configuration: str | None, *, split: str, revision: str | None) -> object:
        datasets = pytest.importorskip("datasets")
        self.asked.append(revision)
        count = 30 if split == "train" else 4
        features = datasets.Features(
            {"img": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"]), "id": datasets.Value("int64")}
        )
        pictures = [Image.new("RGB", (8, 8), (number, 0, 0)) for number in range(count)]
        rows = {"img": pictures, "label": [number % 2 for number in range(count)], "id": list(range(count))}
        made = datasets.Dataset.from_dict(rows, features=features)
        if self.cache is None:
            return made
        made.save_to_disk(self.cache)
        return datasets.load_from_disk(self.cache)


def test_a_set_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.selection.image_sources.import_module", lambda _: FakeHub(("train", "test")))
    sizes = [len(load_images("cifar10", split=split)) for split in ("train", "validation", "test")]
    assert sizes == [28, 2, 4]
    found = load_images("some/set", limit=10)
    assert found.classes == ("cat", "dog") and found.images.shape == (10, 3, 8, 8)
    reds = (found.images[:, 0, 0, 0] * 255).round().long()
    assert torch.equal(reds % 2, found.labels)  # each with its own label


def test_the_commit_of_a_set_of_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is part of the images, and so of what is trained and measured on them."""
    hub = FakeHub(("train", "test"))
    hub.cache = tmp_path / COMMIT
    monkeypatch.setattr("sinklens.selection.image_sources.import_module", lambda _: hub)
    assert load_images("cifar10").source == f"uoft-cs/cifar10@{COMMIT}" and hub.asked == [None]
    assert load_epochs("some/set", revision="v1")(0).take(slice(3)).source == f"some/set@{COMMIT}"
    assert load_images("some/set", revision=COMMIT).source == f"some/set@{COMMIT}"
    assert hub.asked == [None, "v1", COMMIT]
    other = COMMIT[::-1]
    with pytest.raises(UsageError, match=rf"some/set came at commit {COMMIT}, not {other}; is the hub out of reach"):
        load_images("some/set", revision=other)
    with pytest.raises(UsageError, match=r"revision is '../x'; expected a commit, a tag or a branch of some/set"):
        load_images("some/set", revision="../x")
    hub.cache = None
    assert load_images("some/set").source == "some/set"
    assert load_images("some/set", revision=other).source == f"some/set@{other}"


def test_a_revision_is_for_the_hub() -> None:
    for name in ("digits", str(Path(__file__).parent)):
        with pytest.raises(UsageError, match=r"revision 'v1' is for sets of the hub; .* is here already: leave it out"):
            load_images(name, revision="v1")
    assert load_images("digits", limit=1).source == "digits"


def test_no_hub_and_no_library_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = FakeHub((), ConnectionError("unreachable"))
    monkeypatch.setattr("sinklens.selection.image_sources.import_module", lambda _: gone)
    with pytest.raises(UsageError, match=r"cannot load frgfm/imagenette from the hub \(ConnectionError: unreachable\)"):
        load_images("imagenette")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"images 'cifar10' are on the hub; run `pip install datasets`"):
        load_images("cifar10")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(UsageError, match=r"the digits are scikit-learn's, which is not installed"):
        load_images("digits")


# Splits


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("train", "validation", "test"), [("train", None), ("validation", None), ("test", None)]),
        (("train", "val"), [("train", True), ("train", True), ("val", None)]),
        (("train", "test"), [("train", True), ("train", True), ("test", None)]),
        (("train",), [("train", False)] * 3),
    ],
)
def test_parts_of_a_set(parts: tuple[str, ...], expected: list[tuple[str, bool | None]]) -> None:
    assert [part_for(split, parts, name="set") for split in ("train", "validation", "test")] == expected
    with pytest.raises(UsageError, match=r"set has the parts dev; expected a part called train"):
        part_for("test", ("dev",), name="set")


def test_splits_are_disjoint_complete_and_mixed() -> None:
    labels = np.repeat([0, 1, 2, 3], [1000, 500, 3, 1])
    parts = {split: split_of(labels, split, has_test=False) for split in ("train", "validation", "test")}
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(labels)))
    assert [len(part) for part in parts.values()] == [800 + 400 + 1 + 1, 100 + 50 + 1, 100 + 50 + 1]


def test_the_start_of_a_split_is_like_all_of_it() -> None:
    labels = np.arange(20000) % 10
    for split in ("train", "validation"):
        assert len(set(labels[split_of(labels, split, has_test=True)[:30]])) >= 8


# Digits and canvases


def test_digits() -> None:
    parts = [load_images("digits", split=split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [1445, 176, 176]
    assert parts[0].images.shape[1:] == (1, 8, 8) and float(parts[0].images.max()) == 1.0
    scaled = load_images("digits", split="test", size=32, channels=3)
    assert scaled.images.shape == (176, 3, 32, 32)


def maker(scene: Scene | None = None) -> CanvasMaker:
    rng = np.random.default_rng(0)
    objects = torch.zeros(50, 28, 28, dtype=torch.uint8)
    objects[:, 6:22, 8:20] = torch.from_numpy(rng.integers(120, 255, (50, 16, 12), dtype=np.uint8))
    return CanvasMaker(objects, torch.arange(50) % 5, scene=scene)


def test_a_canvas_depends_on_its_number_and_seed_alone() -> None:
    made = maker()
    whole = made.make(torch.arange(50), seed=3)
    some = made.make(torch.tensor([7, 41, 7]), seed=3)
    assert torch.equal(some.pixels, whole.pixels[[7, 41, 7]])
    assert torch.equal(some.foreground, whole.foreground[[7, 41, 7]])
    other = made.make(torch.arange(50), seed=4)
    assert not (other.foreground == whole.foreground).flatten(1).all(dim=1).any()
    assert len(torch.unique(whole.pixels.flatten(1), dim=0)) == 50


def test_the_object_is_where_the_mask_says_and_everywhere_on_the_canvas() -> None:
    bare = Scene(background=(0, 0), gradient=(0, 0), pieces=0, noise=(0, 0), distractor_opacity=(0, 0), cut_share=0.0)
    made = maker(bare).make(torch.arange(50).repeat(4), seed=0)  # nothing but the object
    lit = made.pixels[:, 0] > 60
    overlap = (lit & made.foreground).sum().item() / (lit | made.foreground).sum().item()
    assert overlap > 0.9
    areas = made.foreground.flatten(1).sum(dim=1)  # 16 x 12 of 28 x 28, at 28 to 36 pixels
    assert int(areas.min()) > 192 * 0.85 and int(areas.max()) < 192 * (36 / 28) ** 2 * 1.15
    found = [maker(bare).make(torch.arange(50), seed=seed).foreground for seed in range(12)]
    assert torch.cat(found).any(dim=0)[14:48, 16:46].all()


def test_the_distractor_is_of_another_class() -> None:
    """Classes that differ in brightness, and a canvas with nothing but object and distractor on it."""
    objects = torch.zeros(40, 28, 28, dtype=torch.uint8)
    labels = torch.arange(40) % 2
    objects[:, 6:22, 6:22] = torch.where(labels == 0, 100, 250).to(torch.uint8)[:, None, None]
    scene = Scene(
        background=(0, 0), gradient=(0, 0), pieces=0, noise=(0, 0), object_contrast=(1, 1), cut_share=1.0,
        object_side=(28, 28), distractor_side=(28, 28),
    )  # fmt: skip
    made = CanvasMaker(objects, labels, scene=scene).make(torch.arange(40), seed=0)
    pixels, cores = made.pixels[:, 0], made.foreground
    outside = pixels.masked_fill(cores, 0).flatten(1).float()
    brightest = outside.amax(dim=1)
    seen = (outside > 90).sum(dim=1) > 60  # not covered by the object
    assert seen.sum() > 20
    assert (brightest[seen & (labels == 0)] > 200).all()
    assert (brightest[seen & (labels == 1)] < 130).float().mean() > 0.6  # an edge of the object is brighter


def test_one_class_or_too_small_a_canvas_is_refused() -> None:
    with pytest.raises(UsageError, match="objects of two classes or more, for the distractor; got 1"):
        CanvasMaker(torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(UsageError, match="objects of up to 36 pixels do not fit a canvas of 32"):
        Scene(size=32)


def test_digits_on_canvases_and_their_patches() -> None:
    found = load_images("digits-canvas", split="test", limit=30)
    assert found.images.shape == (30, 1, 64, 64) and found.foreground is not None
    shares = foreground_share(found.foreground, (8, 8))
    assert shares.shape == (30, 64)
    torch.testing.assert_close(shares.mean(dim=1), found.foreground.float().mean(dim=(1, 2)))
    corner = torch.zeros(1, 64, 64, dtype=torch.bool)
    corner[0, 8:16, 56:60] = True
    assert foreground_share(corner, (8, 8)).nonzero().tolist() == [[0, 15]]
    assert float(foreground_share(corner, (8, 8))[0, 15]) == 0.5
    small = load_images("digits-canvas", split="test", limit=3, size=32)
    assert small.images.shape == (3, 1, 32, 32) and small.foreground is not None
    assert small.foreground.shape == (3, 32, 32)


def test_epochs_have_the_same_objects_on_other_canvases() -> None:
    epochs = load_epochs("digits-canvas", seed=5, split="test", limit=6)
    first, second = epochs(0), epochs(1)
    assert torch.equal(first.labels, second.labels) and not torch.equal(first.images, second.images)
    assert torch.equal(second.images, load_images("digits-canvas", seed=6, split="test", limit=6).images)
    plain = load_epochs("digits", split="test", limit=6)
    assert torch.equal(plain(0).images, plain(1).images)


def test_batches_and_parts_of_a_set() -> None:
    found = load_images("digits-canvas", split="test", limit=10)
    sizes = [len(batch) for batch in found.batches(4)]
    assert sizes == [4, 4, 2]
    two = found.take(torch.tensor([3, 1]))
    assert isinstance(two, Images) and two.foreground is not None and found.foreground is not None
    assert torch.equal(two.images[0], found.images[3]) and torch.equal(two.foreground[1], found.foreground[1])
    assert two.labels.tolist() == [int(found.labels[3]), int(found.labels[1])]


@needs_fashion
def test_fashion() -> None:
    found = load_images("fashion", split="test", limit=300)
    assert found.images.shape == (300, 1, 64, 64) and found.foreground is not None
    assert found.classes[9] == "ankle boot" and int(found.labels[0]) == 9  # the first of its test part
    again = load_images(FASHION, split="test", limit=20)
    assert torch.equal(again.images, found.images[:20]) and again.classes == found.classes
    # Energy does not give the object away: a quarter of the patches, by norm, find about half of it.
    patches = torch.nn.functional.unfold(found.images, 8, stride=8).norm(dim=1)
    shares = foreground_share(found.foreground, (8, 8))
    recall = shares.gather(1, patches.topk(16, dim=1).indices).sum() / shares.sum()
    assert 0.25 < float(recall) < 0.6


def test_fashion_that_is_not_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinklens.selection.data.FASHION", tmp_path / "nowhere")
    with pytest.raises(
        UsageError, match=r"Fashion-MNIST is not installed; run `sudo apt install dataset-fashion-mnist`"
    ):
        load_images("fashion")
