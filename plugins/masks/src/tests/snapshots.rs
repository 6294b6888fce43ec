//! Results of each component with its defaults, on the batches that every component should handle.

use capo_plugin::{Image, Point, testing};
use insta::assert_snapshot;

#[test]
fn every_mask() {
    for component in Image::own().components(Point::Mask).unwrap() {
        let id = component.id.as_str();
        assert_snapshot!(id, testing::snapshot(&mut super::mask(id, "{}")));
    }
}

#[test]
fn every_weight() {
    for component in Image::own().components(Point::Weight).unwrap() {
        let id = component.id.as_str();
        assert_snapshot!(id, testing::snapshot(&mut super::weight(id, "{}")));
    }
}
