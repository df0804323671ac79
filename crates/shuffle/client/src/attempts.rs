//! How often a call is tried while servers are lost, and others are there.

use std::thread;
use std::time::{Duration, Instant};

use treadle_net::{Early, Wait};

use crate::{At, Error};

/// The first pause between two attempts, and the longest.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(1);

/// Why a call cannot go on, if it cannot.
pub(crate) fn stopped(wait: &mut Wait<'_>, at: &At) -> Option<Error> {
    let at = at.clone();
    match wait.check() {
        Ok(()) => None,
        Err(Early::Interrupted) => Some(Error::Interrupted { at }),
        Err(Early::Deadline) => Some(Error::TimedOut {
            at,
            reason: "no answer in time: servers were lost or cannot be reached from here, or there are none (see \
                     `treadle shuffle-registry list`)"
                .into(),
        }),
    }
}

/// Calls `act` until it returns something, at once and then after pauses. It is told whether it was called before.
/// There is one attempt, however late it is.
///
/// # Errors
/// What `act` returns; the wait has ended.
pub(crate) fn attempts<T>(
    wait: &mut Wait<'_>,
    at: &At,
    mut act: impl FnMut(bool, &mut Wait<'_>) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let (mut is_again, mut pause) = (false, FIRST);
    loop {
        if let Some(done) = act(is_again, wait)? {
            return Ok(done);
        }
        let mut pausing = wait.until(Some(Instant::now() + pause));
        while pausing.check().is_ok() {
            thread::sleep(pausing.look());
        }
        if let Some(stopped) = stopped(wait, at) {
            return Err(stopped);
        }
        (is_again, pause) = (true, (2 * pause).min(LONGEST));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at() -> At {
        At::Service("trying".into())
    }

    #[test]
    fn the_first_attempt_and_each_later_one_are_told_apart() {
        let mut seen = Vec::new();
        let done = attempts(
            &mut Wait::within(Duration::from_secs(60)),
            &at(),
            |again, _| {
                seen.push(again);
                Ok((seen.len() == 3).then_some(7))
            },
        );
        assert_eq!((done.unwrap(), seen), (7, vec![false, true, true]));
    }

    #[test]
    fn the_time_passes_or_somebody_interrupts_and_there_was_one_attempt() {
        let mut calls = 0;
        let mut never = |_, _: &mut Wait<'_>| {
            calls += 1;
            Ok(None::<()>)
        };
        let late = attempts(&mut Wait::within(Duration::ZERO), &at(), &mut never);
        assert!(matches!(late, Err(Error::TimedOut { .. })));
        let mut interrupted = || true;
        let mut wait = Wait::within(Duration::from_secs(60)).unless(&mut interrupted);
        let interrupted = attempts(&mut wait, &at(), &mut never);
        assert!(matches!(interrupted, Err(Error::Interrupted { .. })));
        assert_eq!(calls, 2);
    }

    #[test]
    fn what_an_attempt_fails_with_ends_it() {
        let failed = attempts(&mut Wait::within(Duration::from_secs(60)), &at(), |_, _| {
            Err::<Option<()>, _>(Error::Interrupted { at: at() })
        });
        assert!(matches!(failed, Err(Error::Interrupted { .. })));
    }
}
