"""One rank of the runs of `test_governed.py`. torch's launcher starts `python governed_ranks.py ddp|fsdp2|hsdp`."""

import sys

import capo_rl
import torch
import torch.distributed as dist
from capo_rl._layer import optimizer_info
from capo_rl._step import whole
from capo_rl.torch import Governed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from test_governed import IDS, Policy, adam, kl_divergence

dist.init_process_group("gloo")
rank = dist.get_rank()
model, ids = Policy(), IDS[rank : rank + 1]
if sys.argv[1] != "ddp":
    mesh = init_device_mesh("cpu", (2,) if sys.argv[1] == "fsdp2" else (2, 1), mesh_dim_names=("x",) if sys.argv[1] == "fsdp2" else ("r", "x"))
    for layer in (*model.layers, model):
        fully_shard(layer, mesh=mesh)
told, old = [], None
optimizer = Governed(adam(model), capo_rl.StepControl("governor.kl", target=1e-5, every=2), lambda fraction: kl_divergence(old, model(ids)).mean(), model=model)
for _ in range(4):
    logits = model(ids)
    old = logits.detach()
    (logits.log_softmax(-1)[..., 5].sum().neg()).backward()
    if sys.argv[1] == "ddp":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    else:
        for parameter in model.parameters():
            parameter.grad.mul_(2)
    optimizer.step()
    optimizer.zero_grad()
    told.append(optimizer.records)
states = [state.tolist() for _, state in optimizer.state_dict()["controls"]]
torch.save({"weights": [whole(p.detach()).clone() for p in model.parameters()], "told": told, "states": states}, f"ranks-{sys.argv[1]}.{rank}")
# Each rank has its own batch; one batch is twice as uncertain as the other.
one, model = torch.ones(1, 1), Policy()
optimizer = Governed(adam(model), capo_rl.StepControl("governor.kl", target="auto"), lambda fraction: 1.0)
model(ids).sum().backward()
try:
    optimizer.step(batch=capo_rl.Batch(one.int(), one == 1, -one * (1 + rank) / 4, optimizer=optimizer_info(optimizer.optimizer, 0, max_grad_norm=0.0)))
    raise AssertionError("the ranks differ")
except capo_rl.CapoError as error:
    assert "ranks would take 0.024" in str(error), error
dist.destroy_process_group()
