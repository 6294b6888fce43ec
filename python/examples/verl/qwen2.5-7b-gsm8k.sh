#!/usr/bin/env bash
# GRPO on GSM8K with CAPO's curvature mask: Qwen2.5-7B-Instruct, verl 0.9.1, one node of 8 GPUs with 80 GB each.
#
# NOT RUN ON GPUs. The settings are those of verl's own example of GRPO on GSM8K, with the four lines that end the actor's part. verl's configuration takes
# them, and masks in verl were run on CPUs with a tiny model (python/tests/test_verl.py). The mask's thresholds are its defaults; `capo/rejection_rate` says
# what they do here.
#
#     pip install 'verl[vllm,fsdp]==0.9.1' && pip install ./python
#     bash python/examples/verl/qwen2.5-7b-gsm8k.sh [KEY=VALUE ...]
#
# It reads ~/data/gsm8k/{train,test}.parquet, which examples/data_preprocess/gsm8k.py of verl writes.
set -euo pipefail

# A component uses all cores on every rank unless `threads` says otherwise.
masks='[{use: capo.curvature, threads: 8}]'

python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    algorithm.use_kl_in_reward=False \
    data.train_files="$HOME/data/gsm8k/train.parquet" \
    data.val_files="$HOME/data/gsm8k/test.parquet" \
    data.train_batch_size=256 \
    data.max_prompt_length=512 \
    data.max_response_length=1024 \
    data.filter_overlong_prompts=True \
    data.truncation=error \
    actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct \
    actor_rollout_ref.model.use_remove_padding=True \
    actor_rollout_ref.model.enable_gradient_checkpointing=True \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.actor.use_kl_loss=False \
    actor_rollout_ref.actor.entropy_coeff=0 \
    actor_rollout_ref.actor.loss_agg_mode=token-mean \
    actor_rollout_ref.actor.strategy=fsdp2 \
    actor_rollout_ref.actor._target_=capo_rl.verl.CapoActorConfig \
    "+actor_rollout_ref.actor.capo.masks=$masks" \
    +actor_rollout_ref.actor.capo.mask_denominator=kept \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \
    trainer.logger='[console]' \
    trainer.project_name=capo \
    trainer.experiment_name=qwen2.5-7b-gsm8k \
    trainer.n_gpus_per_node=8 \
    trainer.nnodes=1 \
    trainer.save_freq=20 \
    trainer.test_freq=5 \
    trainer.total_epochs=15 \
    "$@"
