"""The paper's token mask in plain torch, as somebody would write it into a trainer: dense moments of the last layer, gradients of each token over its rows."""

import torch

CHUNK = 128


class InTorch:
    """The computation of `capo.curvature` under its paper semantics with Adam, at the granularity of tokens."""

    id, inputs, traits = "in-torch", frozenset({"LAST_LAYER"}), frozenset({"TOKEN_WISE"})

    def __init__(self, fisher_threshold: float, hessian_threshold: float) -> None:
        self.fisher, self.hessian = fisher_threshold, hessian_threshold
        self.first = self.second = None
        self.steps = 0

    def _tokens(self, batch, chosen):
        """Rows of the vocabulary [n, K + 1], each row's share of the token's gradient, probabilities and features [n, D] of the tokens in `chosen` [n]."""
        layer = batch.last_layer
        ids, logits = layer.topk_ids.flatten(0, 1)[chosen].long(), layer.topk_logits.flatten(0, 1)[chosen]
        action = batch.completion_ids.flatten()[chosen].long()[:, None]
        outside = ~(ids == action).any(1, keepdim=True)
        extra = torch.where(outside, layer.action_logits.flatten()[chosen][:, None], -torch.inf)
        rows = torch.cat([ids, action], 1)
        probabilities = (torch.cat([logits, extra], 1) / batch.sampling.sampling_temperature).softmax(1)
        is_action = torch.cat([ids == action, outside], 1)
        advantages = batch.advantages.flatten()[chosen]
        return (
            rows,
            is_action.float() - probabilities,
            probabilities,
            layer.hidden.flatten(0, 1)[chosen].float(),
            advantages,
        )

    @torch.no_grad()
    def __call__(self, batch, token_mask):
        optimizer = batch.optimizer
        beta1, beta2, eps, rate = optimizer.beta1, optimizer.beta2, optimizer.eps, optimizer.learning_rate
        decided = torch.as_tensor(token_mask).clone().to(batch.last_layer.hidden.device)
        flat = decided.view(-1)
        for chosen in flat.nonzero()[:, 0].split(CHUNK):
            rows, u, p, hidden, advantages = self._tokens(batch, chosen)
            gradient = (advantages[:, None] * u)[..., None] * hidden[:, None]
            first, second = (1 - beta1) * gradient, (1 - beta2) * gradient**2
            if self.first is not None:
                first, second = first + beta1 * self.first[rows], second + beta2 * self.second[rows]
            root = (second / (1 - beta2 ** (self.steps + 1))).sqrt() + eps
            change = torch.einsum("nkd,nd->nk", first / (1 - beta1 ** (self.steps + 1)) / root, hidden)
            s = (u * change).sum(1)
            q = (p * change**2).sum(1) - (p * change).sum(1) ** 2
            m_f = 0.5 * rate**2 * s**2
            m_h = advantages * (rate * s + 0.5 * rate**2 * (s**2 - q))
            flat[chosen] *= ((m_f < self.fisher) & (m_h.abs() < self.hessian)).to(flat.dtype)
        return decided.cpu().numpy(), {}

    @torch.no_grad()
    def step_end(self, batch, token_mask, taken=True, collective=None):
        hidden = batch.last_layer.hidden
        chosen = torch.as_tensor(token_mask, device=hidden.device).view(-1).nonzero()[:, 0]
        if not taken or not len(chosen):
            return {}
        gradient = torch.zeros(batch.last_layer.vocab_size, hidden.shape[2], device=hidden.device)
        for part in chosen.split(CHUNK):
            rows, u, _, hidden, advantages = self._tokens(batch, part)
            values = (advantages[:, None] * u / len(chosen))[..., None] * hidden[:, None]
            gradient.index_add_(0, rows.flatten(), values.flatten(0, 1))
        if self.first is None:
            self.first, self.second = torch.zeros_like(gradient), torch.zeros_like(gradient)
        beta1, beta2 = batch.optimizer.beta1, batch.optimizer.beta2
        self.first.lerp_(gradient, 1 - beta1)
        self.second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self.steps += 1
        return {}

    def state_dict(self):
        return {"component": self.id, "state": (self.first, self.second, self.steps)}
