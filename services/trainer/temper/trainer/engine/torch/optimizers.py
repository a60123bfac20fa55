"""The optimizer of a policy: AdamW for everything, or Muon for hidden matrices and AdamW for the rest.

State is kept and restored by parameter name, as ``<moment>/<parameter>``.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from temper.trainer.engine.base import OptimizerSettings
from temper.trainer.engine.torch.muon import Muon

MOMENTUM_PREFIX = "momentum/"


class Optimizers:
    """One or two optimizers that cover every parameter of a model exactly once."""

    def __init__(self, model: nn.Module, *, muon: bool) -> None:
        self._model = model
        matrices = [p for name, p in model.named_parameters() if muon and _hidden_matrix(name, p)]
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        self._adamw = torch.optim.AdamW(rest, lr=0.0, weight_decay=0.0)
        self._muon = Muon(matrices, lr=0.0) if matrices else None

    @property
    def muon(self) -> bool:
        """Whether Muon has a part."""
        return self._muon is not None

    def tune(self, settings: OptimizerSettings) -> None:
        """Set learning rates and the like for the next step."""
        betas = (settings.beta1, settings.beta2)
        for group in self._adamw.param_groups:
            group.update(lr=settings.lr, betas=betas, weight_decay=settings.weight_decay, eps=1e-8)
        if self._muon is not None:
            for group in self._muon.param_groups:
                group.update(lr=settings.muon_lr, weight_decay=settings.weight_decay)

    def zero_grad(self) -> None:
        """Forget gradients."""
        self._model.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Apply them."""
        self._adamw.step()
        if self._muon is not None:
            self._muon.step()

    def tensors(self) -> dict[str, Tensor]:
        """Moments and step counts."""
        out: dict[str, Tensor] = {}
        for name, param in self._model.named_parameters():
            for optimizer in self._parts():
                for key, value in optimizer.state.get(param, {}).items():
                    out[f"{key}/{name}"] = value
        return out

    @classmethod
    def restored(cls, model: nn.Module, named: Mapping[str, Tensor]) -> "Optimizers":
        """The inverse of ``tensors``."""
        made = cls(model, muon=any(name.startswith(MOMENTUM_PREFIX) for name in named))
        owner = {
            id(p): part for part in made._parts() for group in part.param_groups for p in group["params"]
        }
        for name, param in model.named_parameters():
            state = {
                full.removesuffix(f"/{name}"): value
                for full, value in named.items()
                if full.endswith(f"/{name}")
            }
            if state:
                owner[id(param)].state[param] = {
                    key: value if key == "step" else value.to(param.device) for key, value in state.items()
                }
        return made

    def _parts(self) -> list[torch.optim.Optimizer]:
        return [self._adamw] if self._muon is None else [self._adamw, self._muon]


def _hidden_matrix(name: str, param: Tensor) -> bool:
    return param.dim() == 2 and ".layers." in name
