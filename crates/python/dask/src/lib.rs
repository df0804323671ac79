//! Dask's graph nodes: reading, converting and evaluating them.
//!
//! | module | what |
//! | --- | --- |
//! | `spec` | the classes of `dask._task_spec`, and where they keep what |
//! | `legacy` | tasks of the old form: tuples of a function and its arguments |
//! | `keys` | from keys to task ids |
//! | `node` | what a task reads, and what it returns |
//! | `subgraph` | fused tasks |
//! | `size` | how large objects are |
//! | `error` | errors of graphs, with the keys of the tasks |

pub mod error;
mod keys;
mod legacy;
mod node;
mod size;
mod spec;
pub mod subgraph;

pub use keys::{Keys, spread};
pub use legacy::Converter;
pub use node::{Depth, Inputs, evaluate, references};
pub use size::size_of;
pub use spec::{Kind, Slot, Spec, slot};
