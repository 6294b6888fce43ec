//! Lending to components what a batch does not hold.

use capo_plugin::{Connection, Extension, Lending, Sink};

/// A sink that lends a rollout's context as well, and connects ranks.
pub struct Lender<'a> {
    /// Where reports go.
    pub sink: &'a mut dyn Sink,
    /// The rollout's context, where it is known.
    pub context: Option<Lending<'a>>,
    /// The connection between the ranks, where there are several.
    pub ranks: Option<Connection<'a>>,
}

impl Sink for Lender<'_> {
    fn behind(&mut self) -> Option<&mut dyn Sink> {
        Some(self.sink)
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        let lent = self.context.as_ref().and_then(|context| context.extension(id));
        match lent.or_else(|| self.ranks.as_ref().and_then(|ranks| ranks.extension(id))) {
            Some(lent) => Some(lent),
            None => self.sink.extension(id),
        }
    }
}
