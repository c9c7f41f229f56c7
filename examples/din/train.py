"""Trains the model of `model.py`, and evaluates it.

    python train.py
    torchrun --standalone --nproc-per-node 2 train.py

After a kill the same command continues from the last checkpoint, also with another number of ranks.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, distributed, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

from featstore import FeatureLoader
from model import Din

STEPS_BETWEEN_CHECKPOINTS = 20
HELD_OUT = "dt >= '2026-11-28'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-history", action="store_true", help="a model without, to compare")
    arguments = parser.parse_args()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if distributed.is_torchelastic_launched():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    # Either model has files of its own.
    prefix = "no-history-" if arguments.no_history else ""
    checkpoint = Path(f"{prefix}checkpoint.pt")
    config = yaml.safe_load(Path("train.yaml").read_text())
    torch.manual_seed(config["seed"])
    model = Din(buckets_of(config), with_history=not arguments.no_history).to(device)
    optimizer = optimizer_of(model)
    # `pad` gives ranks with fewer batches as many steps as the others.
    with FeatureLoader.from_config(config, tail="pad") as loader:
        step = load(checkpoint, model, optimizer, loader)
        for loss in train(model, optimizer, loader, device):
            step += 1
            if step % STEPS_BETWEEN_CHECKPOINTS == 0:
                save(checkpoint, step, model, optimizer, loader)
                log(f"step {step}: loss {loss.item():.3f}")
    # Evaluation has no steps that all ranks make at once.
    held_out = {"where": HELD_OUT, "shuffle": None, "num_epochs": 1, "dispatch": {"in_step": False}}
    with FeatureLoader.from_config(config, **held_out) as loader:
        auc, mean_loss, num_rows = evaluate(model, loader, device)
    log(f"{step} steps; held-out rows: {num_rows:,}, AUC {auc:.3f}, loss {mean_loss:.3f}")
    if is_first():
        torch.save(model.state_dict(), f"{prefix}model.pt")
    if distributed.is_initialized():
        distributed.barrier()  # The ranks' store ends with the process of the first one.
        distributed.destroy_process_group()


def buckets_of(config: dict[str, Any]) -> dict[str, int]:
    """How many ids each slot of a training config has."""
    return {slot["name"]: slot["buckets"] for slot in config["slots"] if "buckets" in slot}


def optimizer_of(model: Din) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def train(
    model: Din, optimizer: torch.optim.Optimizer, loader: FeatureLoader, device: torch.device
) -> Iterator[Tensor]:
    """Makes a step with each batch, and gives the mean loss of its rows on all ranks."""
    parallel: nn.Module = model
    if distributed.is_initialized():
        parallel = DistributedDataParallel(model)
    for batch in loader.to_device(device):
        losses = binary_cross_entropy_with_logits(
            parallel(batch), batch.labels["click"], reduction="none"
        )
        # No row of padding counts, but other ranks wait for its gradients.
        loss = losses.sum() * (not batch.is_padding)
        sums, num_ranks = torch.stack([loss.detach(), loss.new_tensor(batch.num_rows)]), 1
        if distributed.is_initialized():
            distributed.all_reduce(sums)
            num_ranks = distributed.get_world_size()
        optimizer.zero_grad()
        # DDP averages over ranks, whose batches by cost differ in rows: each row weighs the same.
        torch.autograd.backward(loss * num_ranks / sums[1])
        optimizer.step()
        loader.ack()  # The rows of this batch are in the model.
        yield sums[0] / sums[1]


def save(
    checkpoint: Path,
    step: int,
    model: Din,
    optimizer: torch.optim.Optimizer,
    loader: FeatureLoader,
) -> None:
    """Writes a checkpoint. All ranks call it after the same step."""
    state = FeatureLoader.merge_states(gathered(loader.state_dict()))
    if is_first():
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({"step": step, "loader": state, **parts}, checkpoint.with_suffix(".part"))
        checkpoint.with_suffix(".part").replace(checkpoint)  # A kill leaves a whole one.


def load(
    checkpoint: Path, model: Din, optimizer: torch.optim.Optimizer, loader: FeatureLoader
) -> int:
    """Restores the last checkpoint, if there is one, and returns its step."""
    if not checkpoint.exists():
        return 0
    saved = torch.load(checkpoint, map_location="cpu")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    loader.load_state_dict(saved["loader"])
    return int(saved["step"])


@torch.no_grad()
def evaluate(model: Din, loader: FeatureLoader, device: torch.device) -> tuple[float, float, int]:
    """AUC, mean loss and number of the rows of all ranks."""
    scores, labels = [torch.empty(0)], [torch.empty(0)]
    for batch in loader.to_device(device):
        scores.append(model(batch).cpu())
        labels.append(batch.labels["click"].cpu())
    parts = gathered((torch.cat(scores), torch.cat(labels)))
    score, label = (torch.cat(part) for part in zip(*parts, strict=True))
    # The chance that a clicked row scores above another one; ties count half.
    _, cells = torch.unique(score, return_inverse=True)
    clicked, other = (cells[label == of].bincount(minlength=len(score)) for of in (1, 0))
    below = other.cumsum(0) - other / 2
    auc = (clicked * below).sum() / (clicked.sum() * other.sum())
    return auc.item(), binary_cross_entropy_with_logits(score, label).item(), len(score)


def gathered(mine: Any) -> list[Any]:
    """What each rank has."""
    if not distributed.is_initialized():
        return [mine]
    found = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, mine)
    return found


def is_first() -> bool:
    return not distributed.is_initialized() or distributed.get_rank() == 0


def log(text: str) -> None:
    if is_first():
        print(text, flush=True)


if __name__ == "__main__":
    main()
