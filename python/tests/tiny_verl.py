"""A few optimizer steps of verl's `ActorRolloutRefWorker` on a tiny random model. Completions depend only on the step.

    python tiny_verl.py OUT [KEY=VALUE ...] [-- OUT ...]      torchrun --nproc_per_node 2 tiny_verl.py OUT ...

It writes the weights, the numbers of each step, the decisions on its rows, the masks' states and the process's peak memory in bytes to OUT.RANK.
"""

import json
import math
import os
import resource
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ |= {"VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_PLATFORM": "cpu", "HF_HUB_OFFLINE": "1"}
for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29655", "LOCAL_RANK": "0"}.items():
    os.environ.setdefault(name, value)
sys.path.insert(0, str(Path(__file__).parent))

import capo_rl
import torch
import verl
from capo_rl._step import whole
from capo_rl.verl._rows import places
from hydra import compose, initialize_config_dir
from safetensors.numpy import load_file
from tensordict import TensorDict
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.fsdp_utils import get_fsdp_full_state_dict
from verl.workers.engine_workers import ActorRolloutRefWorker

import verl_cpu
from conftest import ROOT

VOCABULARY, EOS = 32, 1
MASK = "{use: capo.curvature, fisher_threshold: 1.4e-3, hessian_threshold: 3e-2, threads: 1}"
MASKS = {
    "none": "",
    "capo": f"[{MASK}]",
    "several": f"[{{use: masks.entropy-quantile, top_entropy_quantile: 0.8}}, {MASK}, masks.icepop]",
    "state": "[{use: capo.curvature, fisher_threshold: 1.4e-3, hessian_threshold: 3e-2, moments: host, threads: 1}]",
    "floor": "[{use: masks.probability-floor, min_probability: 0.0305}]",
    "few": "[{use: masks.probability-floor, min_probability: 0.0255}]",
    "loose": "[{use: capo.curvature, fisher_threshold: 1e9, hessian_threshold: 1e9, threads: 1}]",
    "all": "[{use: masks.probability-floor, min_probability: 1.0}]",
}
CONTROLS = {
    "half": "[{use: governor.kl, target: 1e-5, fraction: 0.5}]",
    "third": "[{use: governor.kl, target: 1e-5, fraction: 0.5, every: 3}]",
    "full": "[{use: governor.kl, target: 1e-4, fraction: 1.0}]",
    "auto": "[{use: governor.kl, target: auto, every: 2}]",
    "follows": "[{use: governor.kl, fraction: 1.0}]",
    "last-layer": "[{use: governor.last-layer}]",
    "loose": "[{use: governor.kl, target: 1e9}]",
    "asks": "[{use: governor.kl, target: 1e9}]",
}


class Asks:
    """A step control that leaves the whole step, and reports all measurements."""

    id, inputs, restores_moments = "asks", frozenset({"ALIGNMENT"}), False

    def __call__(self, batch, weights, groups, measure):
        told = {"kl": measure.measure_kl(1.0), "head": measure.last_layer_kl(), "fisher": measure.fisher(), "norm": math.hypot(*measure.norms())}
        told |= {"alignment": measure.alignment() or 0.0, "tokens": float(weights.sum()), "groups": len(groups), "rows": len(weights)}
        return [1.0] * len(groups), {f"asks/{name}": value for name, value in told.items()}

    def state_dict(self):
        return {"component": self.id, "state": b""}


def options(words):
    chosen = {
        "steps": 4,
        "rows": 8,
        "micro": 4,
        "generations": 4,
        "strategy": "fsdp2",
        "masks": "capo",
        "resume": "",
        "save": 0,
        "layout": "nested",
        "mini": 1,
        "seed": 0,
    }
    chosen |= {
        "tied": 0,
        "set": [],
        "ray": 0,
        "weights": "",
        "epochs": 1,
        "reference": "",
        "reference_fields": "response_mask",
        "external": "",
        "without": "",
        "holes": 0,
        "entropy": 0,
        "dtype": "fp32",
    }
    chosen |= {
        "controls": "",
        "mode": "auto",
        "second_moment": "kept",
        "lr": 1e-3,
        "by_hand": 0,
        "path": 0,
        "width": 32,
        "vocabulary": VOCABULARY,
        "tokens": 0,
        "infer": 0,
        "metrics": "all",
        "batches": "",
        "corrected": "",
        "recorded": "",
    }
    for word in words:
        name, _, value = word.partition("=")
        if name == "set":
            chosen["set"].append(value)
        else:
            chosen[name] = type(chosen[name])(value)
    return chosen


def policy(folder, chosen):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": chosen["width"],
        "intermediate_size": 2 * chosen["width"],
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    sizes |= {"vocab_size": chosen["vocabulary"], "max_position_embeddings": 64 + chosen["tokens"]}
    special = {"pad_token_id": 0, "eos_token_id": EOS, "bos_token_id": None}
    model = Qwen2ForCausalLM(Qwen2Config(tie_word_embeddings=bool(chosen["tied"]), **sizes, **special))
    model.save_pretrained(folder)


def configured(folder, chosen):
    """verl's own configuration with the options that a user would write on the command line."""
    ranks = chosen["ray"] or int(os.environ["WORLD_SIZE"])
    words = [
        f"actor_rollout_ref.model.path={folder}",
        "+actor_rollout_ref.model.load_tokenizer=false",
        "actor_rollout_ref.model.use_remove_padding=false",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        "actor_rollout_ref.actor._target_=capo_rl.verl.CapoActorConfig",
        f"actor_rollout_ref.actor.strategy={chosen['strategy']}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={chosen['rows'] // chosen['generations'] // chosen['mini']}",
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={chosen['micro'] // ranks}",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.name=vllm",
        f"actor_rollout_ref.rollout.n={chosen['generations']}",
        f"actor_rollout_ref.actor.optim.lr={chosen['lr']}",
        "actor_rollout_ref.actor.use_torch_compile=false",
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile=false",
        f"+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype={chosen['dtype']}",
        *([f"+actor_rollout_ref.actor.capo.masks={MASKS[chosen['masks']]}"] if MASKS[chosen["masks"]] else []),
        *([f"+actor_rollout_ref.actor.capo.weights=[{chosen['weights']}]"] if chosen["weights"] else []),
        *([f"+actor_rollout_ref.actor.capo.step_controls={CONTROLS[chosen['controls']]}"] if chosen["controls"] else []),
        f"+actor_rollout_ref.actor.capo.mode={chosen['mode']}",
        f"+actor_rollout_ref.actor.capo.second_moment={chosen['second_moment']}",
        *([f"+actor_rollout_ref.actor.capo.component_metrics={chosen['metrics']}"] if chosen["metrics"] else []),
        *([f"actor_rollout_ref.model.external_lib={chosen['external']}"] if chosen["external"] else []),
        *chosen["set"],
    ]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer/config"), version_base=None):
        return compose("ppo_trainer", overrides=words).actor_rollout_ref


def drawn(step, chosen):
    """A step's prompts, responses, log-probabilities of their tokens, and advantages, at random."""
    random = torch.Generator().manual_seed(100 + step + chosen["seed"])
    draw = lambda low, high, *shape: torch.randint(low, high, shape, generator=random)
    groups = chosen["rows"] // chosen["generations"]
    prompts = [prompt for prompt in [draw(3, VOCABULARY, int(draw(2, 6, 1))) for _ in range(groups)] for _ in range(chosen["generations"])]
    responses = [torch.cat([draw(3, VOCABULARY, chosen["tokens"] - 1 if chosen["tokens"] else int(draw(3, 12, 1))), torch.tensor([EOS])]) for _ in prompts]
    rewards = torch.rand(len(prompts), generator=random)
    grouped = rewards.view(groups, -1)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / grouped.std(1, keepdim=True)).view(-1)
    old = [-3.4 + 0.2 * torch.rand(len(row), generator=random) for row in responses]
    return prompts, responses, old, advantages


def recorded(step, chosen):
    """The same of a step of ``host`` that recorded its batches."""
    path = sorted(Path(chosen["recorded"]).iterdir())[step]
    arrays = {name: torch.from_numpy(array) for name, array in load_file(path).items()}
    prompts = arrays["context/prompt_ids"].long().tensor_split(arrays["context/prompt_ends"].long()[:-1])
    of_completions = lambda name: [row[mask == 1] for row, mask in zip(arrays[name], arrays["completion_mask"], strict=True)]
    responses = [row.long() for row in of_completions("completion_ids")]
    return [prompt for prompt in prompts for _ in range(chosen["generations"])], responses, of_completions("logps"), arrays["advantages"][:, 0]


def batch(step, chosen):
    """A step's completions in the form of verl's trainer, nested, or padded as in its older trainer. Each rank gets its share, and the longest are dealt out first."""
    prompts, responses, old, advantages = (recorded if chosen["recorded"] else drawn)(step, chosen)
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    order = sorted(range(len(prompts)), key=lambda row: -len(responses[row])) if ranks > 1 else range(len(prompts))
    own = list(order)[rank::ranks]
    pick = lambda rows: [rows[row] for row in own]
    prompts, responses, old, advantages = pick(prompts), pick(responses), pick(old), advantages[own]
    fields = {"prompts": prompts, "responses": responses, "input_ids": [torch.cat(pair) for pair in zip(prompts, responses, strict=True)], "old_log_probs": old}
    fields |= {
        "rollout_log_probs": [row + 0.1 for row in old],
        "ref_log_prob": [row - 0.3 for row in old],
        "advantages": [a.repeat(len(row)) for a, row in zip(advantages, responses, strict=True)],
    }
    fields |= {
        "position_ids": [torch.arange(len(row)) for row in fields["input_ids"]],
        "response_mask": [torch.ones(len(row), dtype=torch.int64) for row in responses],
    }
    if chosen["corrected"]:
        correction = [(torch.arange(len(row)) + number) % 3 / 2 for number, row in enumerate(responses)]
        if chosen["corrected"] == "by-hand":
            fields["advantages"] = [a * factor for a, factor in zip(fields["advantages"], correction, strict=True)]
        else:
            fields["rollout_is_weights"] = correction
    if chosen["holes"]:
        # A tool's answer in the middle of a response, and a row that only fills the batch.
        for row in fields["response_mask"]:
            row[1] = 0
        if 0 in own:
            fields["response_mask"][own.index(0)][:] = 0
    fields["loss_mask"] = fields["response_mask"]
    fields.pop(chosen["without"], None)
    nest = lambda rows: torch.nested.as_nested_tensor([row.clone() for row in rows], layout=torch.jagged)
    data = {name: nest(rows) for name, rows in fields.items()}
    if chosen["layout"] == "padded":
        data |= padded(fields)
    data = TensorDict(data, batch_size=len(own))
    common = {
        "calculate_entropy": bool(chosen["entropy"]),
        "global_batch_size": chosen["rows"] // chosen["mini"],
        "mini_batch_size": chosen["rows"] // chosen["mini"],
    }
    tu.assign_non_tensor(data, **common, epochs=chosen["epochs"], seed=1, dataloader_kwargs={"shuffle": False}, temperature=1.0, compute_loss=True)
    if chosen["layout"] == "padded":
        tu.assign_non_tensor(data, max_response_len=16)
    return data


def padded(fields, prompt=8, response=16):
    right = lambda rows: torch.stack([torch.nn.functional.pad(row, [0, response - len(row)]) for row in rows])
    data = {
        name: right(fields[name]) for name in ("responses", "response_mask", "loss_mask", "advantages", "old_log_probs", "rollout_log_probs", "ref_log_prob")
    }
    data["prompts"] = torch.stack([torch.nn.functional.pad(row, [prompt - len(row), 0]) for row in fields["prompts"]])
    attended = [
        torch.tensor([0] * (prompt - len(p)) + [1] * (len(p) + len(r)) + [0] * (response - len(r)))
        for p, r in zip(fields["prompts"], fields["responses"], strict=True)
    ]
    return data | {"attention_mask": torch.stack(attended)}


def handmade(data, token_mask, chosen):
    """The same mini-batch without the dropped tokens, for a run without masks."""
    mask = torch.nested.nested_tensor_from_jagged(token_mask[token_mask >= 0], data["responses"].offsets())
    for name in chosen["reference_fields"].split(","):
        data[name] = torch.nested.nested_tensor_from_jagged(data[name].values() * mask.values().to(data[name].dtype), data[name].offsets())


class Worker(ActorRolloutRefWorker):
    """verl's worker with access to its contents."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def report(self, out, numbers):
        engine = self.actor.engine
        state = get_fsdp_full_state_dict(engine.module, rank0_only=False, offload_to_cpu=False)
        weights = {name: value.detach().cpu().clone() for name, value in state.items()}
        states = [each.state_dict()["state"] for each in engine._components()] if hasattr(engine, "capo") else []
        noted = {name: getattr(self, name, []) for name in ("token_weights", "seen", "path")}
        saved = {"engine": type(engine).__name__, "weights": weights, "numbers": numbers, "states": states} | noted
        saved["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        torch.save(saved, f"{out}.{self.rank}")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def remember(self, chosen):
        """For each step, the weights of its rows' tokens in the order of the data, 0 for dropped tokens and -1 after the responses; the arrays that masks saw; and
        the model's weights after the step, if `path` is chosen."""
        engine, self.token_weights, self.seen, self.path = self.actor.engine, [], [], []
        optimizer_step = engine.optimizer_step
        if chosen["controls"] == "asks":
            engine.capo_step_controls.append(Asks())

        def noted():
            step = getattr(engine, "_step", None)
            if step is not None:
                data, decision = step.data, step.decision
                lengths = data["responses"].offsets().diff() if data["responses"].is_nested else data["attention_mask"][:, 8:].sum(1)
                padding = torch.arange(step.factors.shape[1])[None] >= lengths[:, None]
                self.token_weights.append(torch.where(padding, -1.0, decision.weights[places(decision.rows, engine.get_data_parallel_rank())]))
                self.seen.append((decision.batch.completion_ids.tolist(), decision.batch.group_size))
                if chosen["batches"]:
                    capo_rl.save_batch(f"{chosen['batches']}.{len(self.seen) - 1}.safetensors", decision.batch)
            norm = optimizer_step()
            if chosen["path"]:
                self.path.append({name: whole(value.detach()).clone() for name, value in engine.module.state_dict().items()})
            return norm

        engine.optimizer_step = noted

    def infer(self, data):
        """A pass that trains nothing, like verl's pass for log-probabilities. FSDP2 may keep the weights that it gathered."""
        data = data.copy()
        tu.assign_non_tensor(data, use_remove_padding=False, use_dynamic_bsz=False, micro_batch_size_per_gpu=len(data), use_fused_kernels=False)
        with self.actor.engine.eval_mode():
            self.actor.engine.infer_batch(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def gather_gradients(self):
        """From here on, steps do not change the weights, for `step_by_hand`."""
        engine, self.gradients, self.moments, self.taken = self.actor.engine, [], {}, 0

        def noted():
            self.gradients.append([parameter.grad.to_local().clone() for parameter in engine.module.parameters()])
            return 0.0

        engine.optimizer_step = noted

    @torch.no_grad()
    def step_by_hand(self):
        """A step of AdamW from two gradients: that of the kept tokens, which was gathered first, and that of all tokens. The second moment has both parts."""
        (kept, every), self.gradients, self.taken = self.gradients, [], self.taken + 1
        engine, group = self.actor.engine, self.actor.engine.optimizer.param_groups[0]
        norm = torch.stack([grad.double().square().sum() for grad in every]).sum().sqrt()
        clip = float((engine.optimizer_config.clip_grad / (norm + 1e-6)).clamp(max=1))
        (beta1, beta2), rate = group["betas"], group["lr"]
        for parameter, one, both in zip(engine.module.parameters(), kept, every, strict=True):
            one, rest = clip * one, clip * (both - one)
            first, second = self.moments.get(parameter, (torch.zeros_like(one), torch.zeros_like(one)))
            first, second = beta1 * first + (1 - beta1) * one, beta2 * second + (1 - beta2) * (one.square() + rest.square())
            self.moments[parameter] = first, second
            step = first / (1 - beta1**self.taken) / ((second / (1 - beta2**self.taken)).sqrt() + group["eps"])
            parameter.to_local().mul_(1 - rate * group["weight_decay"]).sub_(rate * step)


def run(worker, out, chosen):
    worker.init_model()
    reference = torch.load(chosen["reference"], weights_only=False)["token_weights"] if chosen["reference"] else None
    if reference is None:
        worker.remember(chosen)
    if chosen["by_hand"]:
        worker.gather_gradients()
    first, numbers = 0, []
    if chosen["resume"]:
        worker.load_checkpoint(chosen["resume"])
        first = int(chosen["resume"].rsplit("-", 1)[1])
    for step in range(first, chosen["steps"]):
        data = batch(step, chosen)
        if reference is not None:
            handmade(data, reference[step], chosen)
        if chosen["infer"]:
            worker.infer(data)
        told = worker.update_actor(data)
        if chosen["by_hand"]:
            worker.update_actor(batch(step, chosen))
            worker.step_by_hand()
        told = tu.get(told.get() if hasattr(told, "get") and not isinstance(told, TensorDict) else told, "metrics")
        numbers.append({name: value for name, value in told.items() if name.startswith("capo/") or name in ("loss", "grad_norm", "actor/pg_loss")})
        if chosen["save"] == step + 1:
            worker.save_checkpoint(str(Path(f"{out}-{step + 1}").absolute()))
    worker.report(str(Path(out).absolute()), json.dumps(numbers, default=float))


def under_ray(config, count):
    """A group of workers on CPUs, made as in verl's trainer."""
    import ray
    from verl.single_controller.ray.base import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    names = ("VERL_USE_EXTERNAL_MODULES", "VERL_PLATFORM", "HF_HUB_OFFLINE")
    variables = {name: os.environ[name] for name in names} | {
        "PYTHONPATH": os.pathsep.join(sys.path[:1] + [os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    ray.init(num_cpus=count, include_dashboard=False, log_to_driver=True, runtime_env={"env_vars": variables})
    pool = RayResourcePool(process_on_nodes=[count], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(ray.remote(Worker), config=config, role="actor"), device_name="cpu")


def main():
    torch.set_num_threads(1)
    words = sys.argv[1:]
    while words:
        end = words.index("--") if "--" in words else len(words)
        once(words[0], options(words[1:end]))
        words = words[end + 1 :]


def once(out, chosen):
    folder = Path(f"model-{chosen['tied']}-{chosen['width']}-{chosen['tokens']}").absolute()
    if chosen["recorded"]:
        folder = ROOT / "host/assets/tiny-arithmetic"
    elif os.environ["RANK"] == "0" and not folder.exists():
        policy(folder, chosen)
    config = configured(folder, chosen)
    if chosen["ray"]:
        run(under_ray(config, chosen["ray"]), out, chosen)
    else:
        verl_cpu.join()
        torch.distributed.barrier()
        run(Worker(config=config, role="actor"), out, chosen)


if __name__ == "__main__":
    main()
