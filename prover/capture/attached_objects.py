"""What was attached to a Recorder: the named tensors that outlive steps."""

from __future__ import annotations

from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from prover.capture import plain_values
from weighbridge.core.errors import UsageError
from weighbridge.transcript.state import View
from weighbridge.transcript.tape import DTYPE_NAMES

Tensor = torch.Tensor

LAZY = (UninitializedParameter, UninitializedBuffer)


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
            if any(isinstance(t, LAZY) for t in [*item.parameters(), *item.buffers()]):
                raise UsageError(
                    f"the module {name!r} has lazy parameters that have no shape yet; say the sizes (nn.Linear for "
                    "nn.LazyLinear), or run it once on an example before the Recorder begins"
                )
            self._modules[name] = item
        elif isinstance(item, torch.optim.Optimizer):
            self._optimizers[name] = item
        elif isinstance(item, Tensor) or hasattr(item, "state_dict"):
            self._others[name] = item
        else:
            raise UsageError(
                f"attach() cannot find tensors in a {type(item).__name__}; pass modules, optimizers or tensors"
            )

    def release(self) -> None:
        """Lets go of everything, once nothing more is recorded."""
        for each in (self._modules, self._optimizers, self._others):
            each.clear()

    def modules(self) -> ItemsView[str, torch.nn.Module]:
        """Returns name and module of each module."""
        return self._modules.items()

    def optimizers(self) -> ItemsView[str, torch.optim.Optimizer]:
        """Returns name and optimizer of each optimizer."""
        return self._optimizers.items()

    def others(self) -> list[Any]:
        """Returns what is neither a module nor an optimizer."""
        return list(self._others.values())

    def tensors(self) -> dict[str, Tensor]:
        """Returns all tensors by name: parameters and buffers, then gradients, optimizer state, others.

        Of a `DTensor`, that is the part that this rank holds.
        """
        return {name: local_part(t) for name, t in self.global_tensors().items()}

    def global_tensors(self) -> dict[str, Tensor]:
        """Returns what `tensors` returns, with each `DTensor` as it is."""
        found: dict[str, Tensor] = {}
        for prefix, module in self._modules.items():
            for name, p in module.named_parameters(remove_duplicate=False):
                found[f"{prefix}.{name}"] = p
            for name, b in module.named_buffers(remove_duplicate=False):
                found[f"{prefix}.{name}"] = b
        for prefix, module in self._modules.items():
            for name, p in module.named_parameters():
                if p.grad is not None:
                    found[f"{prefix}.{name}.grad"] = p.grad
        for prefix, optimizer in self._optimizers.items():
            for param, owner in zip(_parameters(optimizer), self._owners(prefix, optimizer), strict=True):
                for key, value in sorted(optimizer.state.get(param, {}).items()):
                    if isinstance(value, Tensor):
                        found[f"{owner}.{key}"] = value
        for prefix, item in self._others.items():
            if isinstance(item, Tensor):
                found[prefix] = item
            else:
                # A gradient scaler keeps tensors that its state_dict() shows as numbers only.
                for key, value in [*getattr(item, "__dict__", {}).items(), *item.state_dict().items()]:
                    if isinstance(value, Tensor):
                        found[f"{prefix}.{key}"] = value
        return found

    def nested(self) -> dict[str, Tensor]:
        """Returns the tensors in lists, tuples and dictionaries of an optimizer's state (L-BFGS keeps its past so).

        They have no name in the state, since which of a list a tensor is changes from step to step.
        """
        found: dict[str, Tensor] = {}
        for prefix, optimizer in self._optimizers.items():
            for param, owner in zip(_parameters(optimizer), self._owners(prefix, optimizer), strict=True):
                for key, value in optimizer.state.get(param, {}).items():
                    if not isinstance(value, Tensor):
                        plain_values.tensors(value, f"{owner}.{key}", found)
        return found

    def parameters(self) -> dict[str, Tensor]:
        """Returns those of `tensors()` that are parameters of modules, by name."""
        names = {f"{p}.{n}" for p, m in self._modules.items() for n, _ in m.named_parameters(remove_duplicate=False)}
        return {name: t for name, t in self.tensors().items() if name in names}

    def _owners(self, prefix: str, optimizer: torch.optim.Optimizer) -> list[str]:
        """Returns what the names of an optimizer's tensors begin with, for each of its parameters."""
        owners: dict[int, str] = {}
        for model, module in self._modules.items():
            for name, p in module.named_parameters(remove_duplicate=False):
                owners.setdefault(id(p), f"{model}.{name}" if model != "model" else name)
        return [f"{prefix}.{owners.get(id(p), f'param{n}')}" for n, p in enumerate(_parameters(optimizer))]

    def plain(self) -> dict[str, Any]:
        """Returns the numbers and texts by which optimizers and other objects go on: groups, counts, schedules.

        They are CBOR values; what is neither plain nor a tensor is left out.
        """
        found: dict[str, Any] = {}
        for prefix, optimizer in self._optimizers.items():
            groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            owners = self._owners(prefix, optimizer)
            state = [
                {k: plain_values.marked(v, f"{owner}.{k}") for k, v in optimizer.state.get(p, {}).items()}
                for p, owner in zip(_parameters(optimizer), owners, strict=True)
            ]
            order = [[k for k in optimizer.state.get(p, {}) if type(k) is str] for p in _parameters(optimizer)]
            found[prefix] = {"groups": plain_values.reduce(groups), "state": plain_values.reduce(state), "order": order}
        for prefix, item in self._others.items():
            if not isinstance(item, Tensor):
                found[prefix] = plain_values.reduce(item.state_dict())
        return found

    def put_back(self, stored: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Gives what was attached the state of an earlier moment; values of parameters must be in place already.

        Args:
            stored: What `plain` returned then.
            tensors: What `tensors` returned then, restored.

        Raises:
            UsageError: An object does not take its state back.
        """
        for prefix, module in self._modules.items():
            for name, p in module.named_parameters():
                p.grad = tensors.get(f"{prefix}.{name}.grad")
            for name, b in list(module.named_buffers(remove_duplicate=False)):
                wanted = tensors.get(f"{prefix}.{name}")
                if wanted is not None and (b.dtype, b.shape) != (wanted.dtype, wanted.shape):
                    parent, _, leaf = name.rpartition(".")
                    module.get_submodule(parent)._buffers[leaf] = wanted
        for prefix, optimizer in self._optimizers.items():
            groups, parameters = (len(stored[prefix][each]) for each in ("groups", "state"))
            if (groups, parameters) != (len(optimizer.param_groups), len(_parameters(optimizer))):
                raise UsageError(
                    f"{prefix} had {groups} parameter groups with {parameters} parameters and now has "
                    f"{len(optimizer.param_groups)} with {len(_parameters(optimizer))}; make those that came later "
                    "before attach(), or record without resume=True",
                    code="record.resume.differs",
                )
            for group, values in zip(optimizer.param_groups, stored[prefix]["groups"], strict=True):
                group.update(plain_values.merge({k: v for k, v in group.items() if k != "params"}, values))
            owners = self._owners(prefix, optimizer)
            each = zip(_parameters(optimizer), owners, stored[prefix]["state"], stored[prefix]["order"], strict=True)
            for param, owner, values, order in each:
                found = {
                    k.removeprefix(f"{owner}."): t
                    for k, t in tensors.items()
                    if k.startswith(f"{owner}.") and plain_values.SEPARATOR not in k
                }
                if found or values:
                    restored = {**plain_values.unmarked(plain_values.merge(None, values), tensors), **found}
                    # In their old order, which decides the order of operations when a program loads a state.
                    optimizer.state[param] = {k: restored[k] for k in order if k in restored} | restored
        for prefix, item in self._others.items():
            if not isinstance(item, Tensor):
                self._put_back_other(prefix, item, stored[prefix], tensors)

    def _put_back_other(self, prefix: str, item: Any, stored: Any, tensors: Mapping[str, Tensor]) -> None:
        found = {k.removeprefix(f"{prefix}."): t for k, t in tensors.items() if k.startswith(f"{prefix}.")}
        if not hasattr(item, "load_state_dict"):
            raise UsageError(
                f"the attached {type(item).__name__} has no load_state_dict(); give it one, or attach tensors"
            )
        fresh = item.state_dict()
        own = {k: t for k, t in found.items() if isinstance(fresh.get(k), Tensor)}
        item.load_state_dict({**plain_values.merge(fresh, stored), **own})
        for key in found.keys() - own.keys():
            setattr(item, key, found[key])

    def storage_names(self) -> dict[int, str]:
        """Returns the name of each storage: that of the first tensor on it."""
        names: dict[int, str] = {}
        for name, t in self.tensors().items():
            if type(t) is torch.Tensor or isinstance(t, (torch.nn.Parameter, torch.nn.Buffer)):
                names.setdefault(t.untyped_storage()._cdata, name)
        return names

    def views(self, names: Mapping[int, str], *, nested: bool = False) -> list[View]:
        """Returns a view for every tensor that lies on one of the storages in `names` (address to name).

        Args:
            names: Address to name of storages.
            nested: Whether to list what `nested()` returns too.
        """
        return [
            View(
                name,
                names[t.untyped_storage()._cdata],
                DTYPE_NAMES[t.dtype],
                tuple(t.shape),
                t.stride(),
                int(t.storage_offset()),
            )
            for name, t in (self.tensors() | (self.nested() if nested else {})).items()
            if t.untyped_storage()._cdata in names
        ]

    def storage(self, address: int) -> torch.UntypedStorage:
        """Returns the storage with an address, which must be among `storage_names()`."""
        for t in self.tensors().values():
            if t.untyped_storage()._cdata == address:
                return t.untyped_storage()
        raise KeyError(address)


def local_part(t: Tensor) -> Tensor:
    """Returns the part of a `DTensor` that this rank holds; any other tensor as it is."""
    local: Tensor = getattr(t, "_local_tensor", t)
    return local


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
