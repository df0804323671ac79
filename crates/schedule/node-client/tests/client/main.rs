//! The native end of a client against a scheduler and workers that do what a test says.

mod calls;
mod ends;
mod fetch;
mod put;
mod submit;
mod support;
mod waiting;
