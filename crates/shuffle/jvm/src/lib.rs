//! The client of the shuffle service for a JVM: bindings of `io.treadle.spark.service.Native`, which decide nothing.
//!
//! | module | concept |
//! | --- | --- |
//! | `natives` | the methods of the Java class |
//! | `handles` | what Java holds by a number |
//! | `thrown` | errors and panics as exceptions |
//! | `waiting` | how long a call waits, and the Java object that may end it |
//! | `arena` | rows of a map, which Java writes into memory of this side |
//! | `sizes` | how many bytes each partition of a map has as it is stored |
//!
//! A native method never unwinds into the JVM: a panic becomes a `RuntimeException`. So no profile may set
//! `panic = "abort"` for this crate.

mod arena;
mod handles;
mod natives;
mod sizes;
mod thrown;
mod waiting;
