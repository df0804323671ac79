//! Recipes: what a task calls with which arguments, as bytes.
//!
//! | module | what |
//! | --- | --- |
//! | `key`, `value` | keys and small results as bytes |
//! | `tag` | what recipes consist of |
//! | `encoder`, `definition`, `guard`, `stateless` | objects that recipes share: numbering, loading, noticing changes, which those are |
//! | `submission`, `inputs`, `class`, `constant` | the tasks of one submission, what they read, where their objects go |
//! | `write`, `fused`, `objects` | from Dask's nodes and calls, and the objects in them, to recipes |
//! | `run` | running them |
//! | `token` | keys of calls |
//! | `plain`, `pickle` | objects of the built-in types; all others |
//! | `testing` | all of it for tests |

mod class;
mod constant;
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
mod testing;
mod token;
mod value;
mod write;

pub(crate) use constant::{Constant, is_intact};
pub(crate) use definition::Definition;
pub(crate) use encoder::{Encoder, NewDefinition};
pub(crate) use inputs::Input;
pub(crate) use key::{decode_key, encode_key};
pub(crate) use run::{alias, decode_value, execute, owned};
pub(crate) use submission::{Recipe, Submission};
pub(crate) use testing::register;
pub(crate) use token::{Calls, FunctionToken, FunctionTokens, map_keys};
pub(crate) use value::encode_value;
