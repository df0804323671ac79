//! What is measured of servers, disks and connections, to decide how much each gets. Times are durations since any fixed
//! moment, which do not go back.
//!
//! | module | concept |
//! | --- | --- |
//! | `intake` | how fast a server takes what is pushed |
//! | `latency` | how long reads of a device took in the last seconds |
//! | `pace` | what an operation and a byte cost a device |
//! | `window` | how much may be under way to a server |

#![cfg_attr(not(test), no_std)]

#[cfg(test)]
extern crate std;

mod intake;
mod latency;
mod pace;
mod window;

pub use intake::{Gauge, Intake};
pub use latency::{Latency, WINDOW};
pub use pace::Pace;
pub use window::Window;
