//! Lending to components what a batch does not hold.

use capo_plugin::{Connection, Extension, Lending, Sink};

/// A sink that lends a rollout's context as well, and connects ranks.
pub struct Lender<'a> {
    /// Where reports go.
    pub sink: &'a mut dyn Sink,
    /// What is lent, where it is known.
    pub context: Option<Lending<'a>>,
    /// What connects the ranks, where there are several.
    pub ranks: Option<Connection<'a>>,
}

impl Sink for Lender<'_> {
    fn record(&mut self, component: &str, name: &str, value: f64) {
        self.sink.record(component, name, value);
    }

    fn record_tokens(&mut self, component: &str, name: &str, values: &[f32]) {
        self.sink.record_tokens(component, name, values);
    }

    fn warn(&mut self, component: &str, text: &str) {
        self.sink.warn(component, text);
    }

    fn extension(&mut self, id: &str) -> Option<Extension<'_>> {
        let lent = self.context.as_ref().and_then(|context| context.extension(id));
        match lent.or_else(|| self.ranks.as_ref().and_then(|ranks| ranks.extension(id))) {
            Some(lent) => Some(lent),
            None => self.sink.extension(id),
        }
    }

    fn enter(&mut self, component: &str, method: &'static str) {
        self.sink.enter(component, method);
    }

    fn leave(&mut self) {
        self.sink.leave();
    }

    fn objection(&mut self) -> Option<String> {
        self.sink.objection()
    }
}
