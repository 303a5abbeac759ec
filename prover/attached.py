"""What was attached to a Recorder: the named tensors that outlive steps."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

import torch

from weighbridge.errors import UsageError

Tensor = torch.Tensor


class Attached:
    """Modules, optimizers and other holders of tensors, and the names of their tensors.

    Names are `model.h.0.weight` and `model.h.0.weight.grad` for a module, `optimizer.h.0.weight.exp_avg` for an
    optimizer's state; the first module is called `model`, the next ones `model1`, ...; likewise optimizers.
    """

    def __init__(self) -> None:
        self._modules: dict[str, torch.nn.Module] = {}
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        self._others: dict[str, Any] = {}

    def add(self, objects: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Adds objects; see `Recorder.attach`."""
        for item in objects:
            if isinstance(item, torch.nn.Module):
                self._add(f"model{len(self._modules) or ''}", item)
            elif isinstance(item, torch.optim.Optimizer):
                self._add(f"optimizer{len(self._optimizers) or ''}", item)
            else:
                self._add(f"object{len(self._others) or ''}", item)
        for name, item in named.items():
            self._add(name, item)

    def _add(self, name: str, item: Any) -> None:
        if isinstance(item, torch.nn.Module):
            self._modules[name] = item
        elif isinstance(item, torch.optim.Optimizer):
            self._optimizers[name] = item
        elif isinstance(item, Tensor) or hasattr(item, "state_dict"):
            self._others[name] = item
        else:
            raise UsageError(
                f"attach() cannot find tensors in a {type(item).__name__}; pass modules, optimizers or tensors"
            )

    def modules(self) -> ItemsView[str, torch.nn.Module]:
        """Returns name and module of each module."""
        return self._modules.items()

    def optimizers(self) -> ItemsView[str, torch.optim.Optimizer]:
        """Returns name and optimizer of each optimizer."""
        return self._optimizers.items()

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by name: parameters and buffers, then gradients, optimizer state, others."""
        found: dict[str, Tensor] = {}
        owners: dict[int, str] = {}
        for prefix, module in self._modules.items():
            for name, p in module.named_parameters(remove_duplicate=False):
                found[f"{prefix}.{name}"] = p
                owners.setdefault(id(p), f"{prefix}.{name}" if prefix != "model" else name)
            for name, b in module.named_buffers(remove_duplicate=False):
                found[f"{prefix}.{name}"] = b
        for prefix, module in self._modules.items():
            for name, p in module.named_parameters():
                if p.grad is not None:
                    found[f"{prefix}.{name}.grad"] = p.grad
        for prefix, optimizer in self._optimizers.items():
            count = 0
            for group in optimizer.param_groups:
                for p in group["params"]:
                    owner = owners.get(id(p), f"param{count}")
                    count += 1
                    for key, value in sorted(optimizer.state.get(p, {}).items()):
                        if isinstance(value, Tensor):
                            found[f"{prefix}.{owner}.{key}"] = value
        for prefix, item in self._others.items():
            if isinstance(item, Tensor):
                found[prefix] = item
            else:
                for key, value in item.state_dict().items():
                    if isinstance(value, Tensor):
                        found[f"{prefix}.{key}"] = value
        return found

    def storage_names(self) -> dict[int, str]:
        """Returns the name of each storage: that of the first tensor on it."""
        names: dict[int, str] = {}
        for name, t in self.tensors().items():
            if type(t) is torch.Tensor or isinstance(t, (torch.nn.Parameter, torch.nn.Buffer)):
                names.setdefault(t.untyped_storage()._cdata, name)
        return names

    def storage(self, address: int) -> torch.UntypedStorage:
        """Returns the storage with an address, which must be among `storage_names()`."""
        for t in self.tensors().values():
            if t.untyped_storage()._cdata == address:
                return t.untyped_storage()
        raise KeyError(address)
