//! The end of stage 1: from completions to rewards.

use abi_stable::std_types::{ROption, RResult, RSlice, RSliceMut, RStr, RVec};

use crate::guard::{Answers, Guarded};
use crate::sink::{Call, Sink, contract};
use crate::wire::{
    HostRef, RewardBox, WireCompletion, WireError, WireReward, WireReward_TO, WireRollout,
};
use crate::{Ctx, Extension, Inputs, PluginError, Rollout};

/// Computes rewards from completions. The end of stage 1 of 6.
///
/// Training shows the reward's records as `rewards/ID/NAME`; the rewards themselves use the names
/// `mean` and `std`. The host owns the key `weight` of the reward's table. A reward above 0 counts
/// as right when the host measures accuracy.
pub trait Reward: Send {
    /// Fills `rewards`, `[B]`, reward units, one for each of `rollout.completions`. The array
    /// arrives zeroed. A reward sees no tokens, so [`Ctx::record_tokens`] takes one number per
    /// completion, `[B]`.
    fn score(
        &mut self,
        ctx: &mut Ctx<'_>,
        rollout: &Rollout<'_>,
        rewards: &mut [f32],
    ) -> Result<(), PluginError>;

    /// Refuses key values that are out of range or contradict each other, with the key, the value
    /// and the limit. Asked once, at creation, before all else; no run starts after an error.
    fn validate(&self) -> Result<(), PluginError> {
        Ok(())
    }

    /// State for a checkpoint; a resumed run continues bit for bit.
    fn save(&self) -> Result<Vec<u8>, PluginError> {
        Ok(Vec::new())
    }

    /// Restores the state that [`save`](Self::save) wrote. After an error, because the state is
    /// another component's, the component is as it was.
    fn load(&mut self, state: &[u8]) -> Result<(), PluginError> {
        PluginError::of_stateless(state)
    }
}

point! {
    Reward, built by reward "a reward",
    as RewardBox over WireReward_TO,
    held as RewardHandle,
    _component answers Answers::NONE
}

impl<T: Reward> WireReward for Guarded<T> {
    fn score(
        &mut self,
        host: &mut HostRef<'_>,
        rollout: &WireRollout<'_>,
        rewards: RSliceMut<'_, f32>,
    ) -> RResult<(), WireError> {
        self.call("score", |component| {
            component.score(
                &mut Ctx::new(host),
                &rollout.into(),
                rewards.into_mut_slice(),
            )
        })
    }

    guarded_methods!();
}

impl RewardHandle {
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
        let completions = rollout
            .completions
            .iter()
            .map(WireCompletion::from)
            .collect::<Vec<_>>();
        let wire = &mut self.wire;
        let call = Call {
            component: &self.id,
            method: "score",
            length: count,
            counted: "completions (at this point one per completion)",
        };
        let outcome = call.heard_by(sink, |host| {
            wire.score(
                host,
                &rollout.to_wire(&completions),
                RSliceMut::from_mut_slice(rewards),
            )
            .into_result()
        });
        outcome.map_err(|error| self.named(error))?;
        let broken = rewards
            .iter()
            .enumerate()
            .find(|(_, reward)| !reward.is_finite());
        let Some((completion, reward)) = broken else {
            return Ok(());
        };
        let sentence =
            format!("the reward is {reward} at completion {completion} (it must be finite)");
        Err(self.named(contract(sentence)))
    }
}
