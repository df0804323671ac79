//! Checks without which the core would be wrong.

treadle_guards::guards! {
    /// Checks that keep the core correct.
    pub enum Guard {
        /// A local id stands for one use of a task's number. Once the task is forgotten, it means
        /// nothing, whatever has the number then.
        Generation,
        /// A worker is sent what a task refers to ahead of the task.
        Definition,
    }
}
