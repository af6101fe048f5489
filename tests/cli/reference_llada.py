"""A stand-in for the original LLaDA code: plain torch, nothing from sinklens, run as a reference is.

Tests also run copies of this file with one line changed, so a few lines are there to be found and replaced.
"""

import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file


def norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def rotate(x, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float32), frequencies)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


def forward(ids, weights, config):
    theta = config["rope_theta"]
    eps, heads = config["rms_norm_eps"], config["n_heads"]
    top = {name.removeprefix("model.transformer."): tensor for name, tensor in weights.items()}
    x = top["wte.weight"][ids]
    for layer in range(config["n_layers"]):
        w = {n.removeprefix(f"blocks.{layer}."): t for n, t in top.items() if n.startswith(f"blocks.{layer}.")}
        y = norm(x, w["attn_norm.weight"], eps)
        q, k, v = ((y @ w[f"{name}_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2) for name in "qkv")
        q, k = rotate(q, theta), rotate(k, theta)
        attention = F.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v
        x = x + attention.transpose(1, 2).flatten(-2) @ w["attn_out.weight"].T
        y = norm(x, w["ff_norm.weight"], eps)
        x = x + (F.silu(y @ w["ff_proj.weight"].T) * (y @ w["up_proj.weight"].T)) @ w["ff_out.weight"].T
    return norm(x, top["ln_f.weight"], eps) @ top["ff_out.weight"].T


def sample(prompt, model, mask_id, *, steps, length, block):
    """One row, temperature 0: block by block, the most confident proposals are kept, as many every step."""
    canvas = torch.cat([prompt, torch.full((1, length), mask_id)], 1)
    history = [canvas.clone()]
    for start in range(prompt.shape[1], prompt.shape[1] + length, block):
        rounds = steps * block // length
        for turn in range(rounds):
            confidence, proposal = F.softmax(model(canvas), -1).max(-1)
            open_ = canvas == mask_id
            open_[:, start + block :] = False
            keep = block // rounds + (turn < block % rounds)
            chosen = confidence.masked_fill(~open_, -1.0).topk(keep).indices
            canvas = canvas.scatter(1, chosen, proposal.gather(1, chosen))
            history.append(canvas.clone())
    return torch.stack(history)


def main(request_folder, answer_folder):
    request = json.loads((request_folder / "request.json").read_text())
    inputs = load_file(request_folder / "inputs.safetensors")
    folder = Path(request["model"])
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    answers = {"logits": forward(inputs["ids"], weights, config)}
    for run in request["runs"]:
        settings = {name: run["settings"][name] for name in ("steps", "length", "block")}
        answers[run["name"]] = sample(
            inputs[run["prompt"]], lambda ids: forward(ids, weights, config), request["mask_id"], **settings
        )
    versions = {"torch": torch.__version__, "reference": "stand-in"}
    save_file(answers, answer_folder / "answer.safetensors")
    (answer_folder / "answer.json").write_text(json.dumps({"versions": versions}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
