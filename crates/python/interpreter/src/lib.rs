//! What native code needs of the Python interpreter.
//!
//! | module | what |
//! | --- | --- |
//! | `fork` | telling a forked child from its parent |
//! | `process_local` | values that a forked child must not touch |
//! | `context` | the context variables of a task |
//! | `switch` | letting other threads run, and signal handlers |
//! | `call` | calls from threads that may outlive the interpreter |
//! | `clock` | Python's clocks |
//! | `modules` | modules that are loaded |
//! | `pickling` | whether a thread pickles something |
//! | `lock` | locking a mutex |
//! | `error` | objects and panics in messages |

mod call;
pub mod clock;
mod context;
mod error;
pub mod fork;
mod lock;
mod modules;
mod pickling;
mod process_local;
mod switch;

pub use call::{call, vectorcall, vectorcall_dict};
pub use context::{Context, thread_identifier};
pub use error::{panicked, repr};
pub use lock::lock;
pub use modules::loaded_module;
pub use pickling::{Pickling, is_pickling};
pub use process_local::{ProcessLocal, refuse_forked};
pub use switch::PeriodicSwitch;
