//! What a pair promises: to a hostile peer, on bad networks, and without each of its guards.

mod guards;
mod hostile;
mod regressions;
mod simulation;
mod stripes;
mod support;
