//! How long a call waits, and the Java object that may end it.

use std::time::Duration;

use jni::objects::JObject;
use jni::{Env, jni_sig, jni_str};
use treadle_shuffle_client::Wait;

use crate::thrown::Thrown;

/// Calls `act` with a wait of so many milliseconds. About every 25 ms of it, `interrupt.interrupted()` is asked on this
/// thread: the JVM does not wake a thread that waits here.
///
/// # Errors
/// What `act` returns. An exception of `interrupt` ends the wait, and stays pending.
pub(crate) fn waiting<'local, T>(
    env: &mut Env<'local>,
    millis: i64,
    interrupt: &JObject<'_>,
    act: impl FnOnce(&mut Wait<'_>) -> Result<T, Thrown>,
) -> Result<T, Thrown> {
    let wait = Wait::within(Duration::from_millis(millis.max(0).unsigned_abs()));
    let mut asked = || {
        let answer = env.call_method(interrupt, jni_str!("interrupted"), jni_sig!("()Z"), &[]);
        answer.and_then(|answer| answer.z()).unwrap_or(true)
    };
    act(&mut wait.unless(&mut asked))
}
