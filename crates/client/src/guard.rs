//! Checks without which the core would be wrong.

treadle_guards::guards! {
    /// Checks that keep the core correct.
    pub enum Guard {
        /// What the scheduler says of an earlier name of a key does not count.
        LastName,
        /// What a client has cancelled, it makes or puts anew, however late it hears of that.
        Cancelled,
    }
}
