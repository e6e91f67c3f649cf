"""Pictures of your own: train on a folder of images, then sample, reconstruct and score.

    python examples/own_images.py                      # makes a small folder of synthetic pictures first
    python examples/own_images.py --images MY_FOLDER --size 64 --updates 20000 --out runs/mine

The same from the command line:

    lebm train images --set data.path=MY_FOLDER --set generator.size=64 --run runs/mine
    lebm sample runs/mine -n 64 --out samples.png
    lebm reconstruct runs/mine --input MY_FOLDER --out reconstructions.png
    lebm score runs/mine --input MY_FOLDER --out scores.csv --sort
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import lebm
from lebm.core.pixels import to_pixels
from lebm.modalities import of
from lebm.show.pictures import pairs, save


def make_pictures(folder, n=190, seed=0):
    """n pictures of 24x24 pixels: a bright disc or a square on a dark ground."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(n):
        ground, colour = rng.integers(0, 60, 3), rng.integers(120, 256, 3)
        picture = Image.new("RGB", (24, 24), tuple(int(v) for v in ground))
        (left, top), side = rng.integers(2, 9, 2), int(rng.integers(9, 14))
        shape = ImageDraw.Draw(picture).ellipse if i % 2 else ImageDraw.Draw(picture).rectangle
        shape((int(left), int(top), int(left) + side, int(top) + side), fill=tuple(int(v) for v in colour))
        picture.save(folder / f"{i:03d}-{'disc' if i % 2 else 'square'}.png")


def make_odd_pictures(folder, n=10, seed=1):
    """Pictures that are not like the others: coloured noise."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(n):
        Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(folder / f"{i:03d}-noise.png")


def main(argv=None):
    parser = argparse.ArgumentParser(description="Train lebm on a folder of images.")
    parser.add_argument(
        "--images", type=Path, help="a folder of PNG, JPEG or WebP files; where it is left out, synthetic pictures"
    )
    parser.add_argument(
        "--size", type=int, default=16, help="pictures are cropped and resized to this many pixels a side"
    )
    parser.add_argument("--updates", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("runs/own_images"), help="the run folder, which must be new")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        odd = Path(temporary, "odd")
        make_odd_pictures(odd)
        if args.images is None:
            args.images = Path(temporary, "pictures")
            make_pictures(args.images)
        run(args.images, odd, args.size, args.updates, args.out)


def run(images, odd, size, updates, out):
    config = {
        "preset": "images/paper",
        "name": "own_images",
        "nz": 16,
        "data.path": str(images),
        "generator.size": size,
        "method.energy.width": 100,
        "generator.ngf": 8,
        "generator.sigma": 0.2,
        "optimizers.prior.rate": 1e-4,
        "optimizers.generator.rate": 1e-3,
        "training.updates": updates,
        "training.batch": 50,
        "training.log_every": max(1, updates // 8),
    }
    lebm.train(config, run=out)
    model = lebm.load(out)  # the same as what lebm.train returned, as a later program would get it
    read = of(model.generator.modality).read_inputs  # cropped and resized as the training pictures were

    lebm.save_images(model.sample(64, seed=0), out / "samples.png")

    pictures = read([images], model.generator)  # .rows: uint8 (n, 3, size, size), .names: of the files
    x_hat = model.reconstruct(pictures.rows[:20])
    save(pairs(pictures.rows[:20], to_pixels(x_hat)), out / "reconstructions.png")

    scores = model.anomaly_score(pictures.rows)  # higher is stranger
    strange = model.anomaly_score(read([odd], model.generator).rows)
    first, middle = pictures.names[int(scores.argmax())], scores.median()
    print(f"the strangest of the pictures: {first} with score {scores.max():.1f}; their median is {middle:.1f}")
    print(f"pictures of noise: median score {strange.median():.1f}")
    print(f"samples.png and reconstructions.png are in {out}")


if __name__ == "__main__":
    main()
