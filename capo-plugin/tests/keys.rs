//! Descriptions of keys that `register!` gives, as a host hears them.

use capo_plugin::prelude::*;
use capo_plugin::wire::{ComponentInfo, KeyDoc};
use capo_plugin::{Image, KeyDocs, Point, keys, testing};

macro_rules! mask {
    ($name:ident { $($field:tt)* }) => {
        #[derive(Deserialize)]
        #[allow(dead_code)]
        struct $name { $($field)* }

        impl Mask for $name {
            fn mask(&mut self, _: &mut Ctx<'_>, _: &Batch<'_>, _: &mut [u8]) -> Result<(), PluginError> {
                Ok(())
            }
        }
    };
}

mask!(Described { max_nats: f32, #[serde(default = "warm_up")] warm_up: u64, share: Option<f32> });
mask!(Plain { max_nats: f32 });
mask!(Inner { max_nats: f32 });
// A type that does not say which keys it reads.
mask!(Flat {
    #[serde(flatten)]
    inner: Inner
});

fn warm_up() -> u64 {
    10
}

fn broken() -> u64 {
    panic!("a default that panics")
}

const SHARED: KeyDocs = keys! { max_nats => "largest surprise kept, nats" };

register!(Mask, Described, "test.described", "has descriptions", {
    max_nats => "largest surprise kept, nats"; 1e-3..50.0,
    warm_up = warm_up() => "steps that keep all",
    share = None::<f32> => "largest share of tokens dropped; no limit when absent",
});
register!(Mask, Plain, "test.plain", "has no descriptions");
register!(
    Mask,
    Plain,
    "test.comma",
    "has no descriptions, and a comma",
);
register!(
    Mask,
    Plain,
    "test.shared",
    "has those of a constant",
    SHARED
);
register!(Mask, Flat, "test.flat", "has descriptions only", SHARED,);
register!(Mask, Plain, "test.broken", "has a default that panics", { max_nats = broken() => "never heard" });

fn component(id: &str) -> ComponentInfo {
    Image::own().component(Point::Mask, id).unwrap().unwrap()
}

#[test]
fn keys_are_described_in_the_order_of_their_author() {
    let max_nats = KeyDoc::required("max_nats", "largest surprise kept, nats");
    let warm_up = KeyDoc::optional("warm_up", "steps that keep all", &10);
    let share = KeyDoc::optional(
        "share",
        "largest share of tokens dropped; no limit when absent",
        &None::<f32>,
    );
    assert_eq!(
        component("test.described").key_docs,
        [max_nats.clone().searched(1e-3..50.0), warm_up, share]
    );
    assert_eq!(component("test.shared").key_docs, [max_nats]);
    for id in ["test.plain", "test.comma", "test.broken"] {
        assert_eq!(component(id).key_docs, [], "{id}");
    }
    assert!(
        Image::own()
            .component(Point::Reward, "test.described")
            .unwrap()
            .is_none()
    );
}

#[test]
fn keys_that_a_type_hides_are_those_that_are_described() {
    assert_eq!(component("test.flat").keys, ["max_nats"]);
}

#[test]
fn they_are_of_the_keys_that_there_are() {
    assert_eq!(testing::check_key_docs(), Ok(()));
}
