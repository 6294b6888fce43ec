//! The end of stage 1: from completions to rewards.

use abi_stable::std_types::{RResult, RSlice, RSliceMut, RVec};

use crate::abi::{HostRef, WireError};
use crate::abi_reward::{RewardBox, RewardPoint, RewardWire, RewardWire_TO, WireCompletion, WireRollout};
use crate::guard::{Answers, Guarded};
use crate::sink::{Sink, contract, listen};
use crate::{Ctx, Inputs, PluginError, Rollout};

/// Computes rewards from completions. The end of stage 1 of 6.
///
/// Training shows the reward's records as `rewards/ID/NAME`; the rewards themselves use the names `mean` and `std`. The host
/// owns the key `weight` of the reward's table. A reward above 0 counts as right when the host measures accuracy.
pub trait Reward: Send {
    /// Fills `rewards`, `[B]`, reward units, one for each of `rollout.completions`. The array arrives zeroed. A
    /// reward sees no tokens, so [`Ctx::record_tokens`] takes one number per completion, `[B]`.
    ///
    /// # Errors
    ///
    /// A message with the reason; the run stops with it and can be resumed.
    fn score(&mut self, ctx: &mut Ctx<'_>, rollout: &Rollout<'_>, rewards: &mut [f32]) -> Result<(), PluginError>;

    common_methods!();
}

point! {
    Reward: Reward, built by reward "a reward",
    RewardPoint of RewardBox over RewardWire_TO,
    RewardFn answers |_component| Answers::NONE
}

impl<T: Reward> RewardWire for Guarded<T> {
    guarded_fill!(score(rollout: WireRollout, rewards: f32));

    guarded_state!();
}

impl RewardFn {
    /// Calls `score` on zeroed `rewards`, `[B]`.
    ///
    /// # Errors
    ///
    /// The component's own message, or the violated rule: a reward that is not finite.
    pub fn score(
        &mut self,
        sink: &mut dyn Sink,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError> {
        let count = rollout.completions.len();
        assert_eq!(rewards.len(), count, "`rewards` is [B]");
        rewards.fill(0.0);
        let completions = rollout.completions.iter().map(WireCompletion::from).collect::<Vec<_>>();
        let wire = &mut self.wire;
        let length = (count, "completions (at this point one per completion)");
        let outcome = listen((&self.id, "score", Inputs::NONE), length, sink, |host| {
            wire.score(host, &rollout.to_wire(&completions), RSliceMut::from_mut_slice(rewards)).into_result()
        });
        outcome.map_err(|error| self.named(error))?;
        let broken = rewards.iter().enumerate().find(|(_, reward)| !reward.is_finite());
        let Some((completion, reward)) = broken else { return Ok(()) };
        let sentence = format!("the reward is {reward} at completion {completion} (it must be finite)");
        Err(self.named(contract(sentence)))
    }
}
