//! Checks without which the core would be wrong.

treadle_guards::guards! {
    /// Checks that keep the core correct.
    pub enum Guard {
        /// The scheduler is told the last name of a key: it may have forgotten what the first stood for.
        Named,
    }
}
