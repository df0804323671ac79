//! Recipes: what a task calls with which arguments, as bytes.
//!
//! | module | what |
//! | --- | --- |
//! | `key`, `value`, `data` | keys and small results as bytes; which results those are |
//! | `tag` | what recipes consist of |
//! | `encoder`, `definition`, `guard`, `stateless` | objects that recipes share: numbering, loading, noticing changes, which those are |
//! | `submission`, `inputs`, `class`, `constant` | the tasks of one submission, what they read, where their objects go |
//! | `write`, `fused`, `objects` | from Dask's nodes and calls, and the objects in them, to recipes |
//! | `run` | running them |
//! | `token` | keys of calls |
//! | `scalar` | NumPy's scalars |
//! | `plain`, `pickle` | objects of the built-in types; all others |
//! | `testing` | encoders and definitions by themselves, for tests; behind a feature |

mod class;
mod constant;
mod data;
mod definition;
mod encoder;
mod fused;
mod guard;
mod inputs;
mod key;
mod objects;
mod pickle;
mod plain;
mod run;
mod scalar;
mod stateless;
mod submission;
mod tag;
#[cfg(feature = "testing")]
mod testing;
mod token;
mod value;
mod write;

pub use constant::{Constant, is_intact};
pub use definition::Definition;
pub use encoder::{Encoder, NewDefinition};
pub use inputs::Input;
pub use key::{decode_key, encode_key};
pub use run::{alias, decode_value, execute, may_unpickle, owned};
pub use submission::{Recipe, Submission};
#[cfg(feature = "testing")]
pub use testing::register;
pub use token::{Calls, FunctionToken, FunctionTokens};
pub use value::{encode_data, encode_value};
