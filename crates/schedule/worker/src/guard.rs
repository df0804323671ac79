//! Checks without which the core would be wrong.

treadle_guards::guards! {
    /// Checks that keep the core correct.
    pub enum Guard {
        /// A cancelled task counts as stopped when it has ended, not when it is told to.
        Stopped,
        /// A task that has started is not taken back.
        Started,
        /// What a cancelled task returns is dropped.
        Dropped,
    }
}
