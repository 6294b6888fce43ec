//! A plugin whose descriptions are of other keys than its types read.

use capo_plugin::prelude::*;
use capo_plugin::testing;

#[derive(Deserialize)]
#[allow(dead_code)]
struct Score {
    price: f32,
}

impl Reward for Score {
    fn score(
        &mut self,
        _: &mut Ctx<'_>,
        _: &Rollout<'_>,
        _: &mut [f32],
    ) -> Result<(), PluginError> {
        Ok(())
    }
}

register!(Reward, Score, "test.score", "describes a key that it lacks", { prize => "what a token costs" });

#[test]
fn it_is_told_which() {
    let sentence = testing::check_key_docs().unwrap_err();
    let why = "key `prize` is described, but nothing reads it (did you mean `price`?)";
    assert_eq!(sentence, format!("reward `test.score`: {why}"));
    let all = testing::conform(&[("test.score", "price = 1.0")]).unwrap_err();
    assert_eq!(all, format!("reward `test.score`: key-docs: {why}"));
    let all = testing::conform(&[]).unwrap_err();
    assert!(
        all.contains("reward `test.score`: creation: it refuses its table: key `price` is missing"),
        "{all}"
    );
}
