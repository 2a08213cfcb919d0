"""Small files in the formats of the real data sets, written independently of their readers."""

import gzip
import hashlib
import io
import json
import lzma
import struct
import tarfile

import numpy as np
from PIL import Image

BATCHES = [f"data_batch_{i}" for i in range(1, 6)]
CIFAR_10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer"]
CIFAR_10_CLASSES += ["dog", "frog", "horse", "ship", "truck"]


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz" and not path.name.endswith(".tar.gz"):
        content = gzip.compress(content, mtime=0)
    if path.suffix == ".xz":
        content = lzma.compress(content)
    path.write_bytes(content)
    return path


def write_sums(root):
    """What ``sha256sum`` prints for every file below a folder."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(root)}" for p in files]
    (root / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def idx(array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(struct.pack(">I", n) for n in array.shape)
    return header + array.astype(np.uint8).tobytes()


def amat(images):
    rows = images.reshape(len(images), -1)
    return "".join(" ".join(str(int(v)) for v in row) + "\n" for row in rows).encode()


def write_mnist(folder, suffix, train, train_labels, test, test_labels):
    arrays = {
        "train-images-idx3-ubyte": train,
        "train-labels-idx1-ubyte": train_labels,
        "t10k-images-idx3-ubyte": test,
        "t10k-labels-idx1-ubyte": test_labels,
    }
    return [write(folder / f"{name}{suffix}", idx(array)) for name, array in arrays.items()]


def encoded(pixels, kind, **options):
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def write_webp(root, name, train, test, tables, classes_file, classes):
    """100 and 20 lossless files with the images [n, 32, 32, 3] below each other."""
    folder = root / name
    for part, images, files in (("train", train, 100), ("test", test, 20)):
        for k, piece in enumerate(np.split(images, files)):
            content = encoded(piece.reshape(-1, 32, 3), "WEBP", lossless=True, exact=True)
            write(folder / part / f"{k:03}.webp", content)
        columns = tables[part]
        cells = zip(*columns.values(), strict=True)
        rows = ["\t".join(columns), *("\t".join(map(str, row)) for row in cells)]
        write(folder / f"{part}.tsv", ("\n".join(rows) + "\n").encode())
    write(folder / classes_file, classes.encode())


def records(images, *labels):
    """The binary version of CIFAR: labels, then the red, green and blue plane."""
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([*labels, planes]).astype(np.uint8).tobytes()


def archive(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def write_cifar_10(root, form, train, train_labels, test, test_labels):
    images = dict(zip(BATCHES, np.split(train, 5), strict=True)) | {"test_batch": test}
    labels = dict(zip(BATCHES, np.split(train_labels, 5), strict=True)) | {
        "test_batch": test_labels
    }
    bins = {f"{n}.bin": records(images[n], labels[n]) for n in images}
    if form == "webp":
        tables = {
            part: {"label": y, "filename": [f"{part}{i}.png" for i in range(len(y))]}
            for part, y in (("train", train_labels), ("test", test_labels))
        }
        names = "\n".join(CIFAR_10_CLASSES)
        write_webp(root, "cifar-10", train, test, tables, "classes.txt", names)
    elif form == "binary folder":
        for name, content in bins.items():
            write(root / "cifar-10-batches-bin" / name, content)
    else:
        inner = {f"cifar-10-batches-bin/{name}": content for name, content in bins.items()}
        archive(root / "cifar-10-binary.tar.gz", inner)


def write_cifar_100(root, form, train, test, fine, coarse, fine_names, coarse_names):
    """``fine`` and ``coarse`` are pairs of labels: train, test."""
    parts = {"train": (train, fine[0], coarse[0]), "test": (test, fine[1], coarse[1])}
    bins = {f"{name}.bin": records(x, c, f) for name, (x, f, c) in parts.items()}
    bins |= {
        "fine_label_names.txt": "\n".join(fine_names).encode(),
        "coarse_label_names.txt": "\n".join(coarse_names).encode(),
    }
    if form == "webp":
        tables = {
            name: {"fine": f, "coarse": c, "filename": [f"{i}.png" for i in range(len(f))]}
            for name, (_, f, c) in parts.items()
        }
        of = dict(zip(fine[0], coarse[0], strict=True))
        rows = ["fine\tname\tcoarse\tcoarse_name"]
        rows += [f"{k}\t{n}\t{of[k]}\t{coarse_names[of[k]]}" for k, n in enumerate(fine_names)]
        write_webp(root, "cifar-100", train, test, tables, "classes.tsv", "\n".join(rows) + "\n")
    elif form == "binary folder":
        for name, content in bins.items():
            write(root / "cifar-100-binary" / name, content)
    else:
        inner = {f"cifar-100-binary/{name}": content for name, content in bins.items()}
        archive(root / "cifar-100-binary.tar.gz", inner)


def write_imdb(root, form, reviews):
    """``reviews`` maps train and test to (text, label) in the order of the archive."""
    if form == "json lines":
        for split, rows in reviews.items():
            lines = [json.dumps({"text": t, "label": y}, ensure_ascii=False) for t, y in rows]
            write(root / "imdb" / f"{split}.jsonl.xz", ("\n".join(lines) + "\n").encode())
        return
    members = {"aclImdb/README": b"nothing", "aclImdb/train/unsup/0_0.txt": b"unlabeled"}
    for split, rows in reviews.items():
        for label, name in ((1, "pos"), (0, "neg")):
            texts = [text for text, y in rows if y == label]
            for i, text in reversed(list(enumerate(texts))):  # archives are in no order
                members[f"aclImdb/{split}/{name}/{i}_{7 if label else 2}.txt"] = text.encode()
    if form == "archive":
        archive(root / "aclImdb_v1.tar.gz", members)
    else:
        for name, content in members.items():
            write(root / name, content)
