//! Each guard of the crate is proved by its absence: a test fails without it, or a simulation.

use std::panic::catch_unwind;

use treadle_guards::without;
use treadle_sim_kernel::assert_noticed;
use treadle_transfer::Guard;

use crate::simulation::simulate;
use crate::{hostile, regressions, stripes};

/// A test, and the guards without which it fails.
type Proof = (fn(), &'static [Guard]);

#[test]
fn without_a_guard_a_promise_is_broken() {
    let tests: &[Proof] = &[
        (
            hostile::a_peer_must_not_have_too_many_connections_made,
            &[Guard::Dials],
        ),
        (
            hostile::a_receiver_must_not_speak_of_what_was_never_offered,
            &[Guard::SenderCredit, Guard::SpokenOf, Guard::Accepted],
        ),
        (
            hostile::a_report_must_be_about_a_stripe_and_what_it_carried,
            &[Guard::ReportedExtents, Guard::ReportedStripe],
        ),
        (
            hostile::a_stripe_must_not_be_opened_twice_nor_too_many_of_them,
            &[Guard::Stripes, Guard::JoinedOnce],
        ),
        (
            hostile::an_extent_must_be_one_of_the_object,
            &[Guard::Length],
        ),
        (hostile::an_extent_must_not_arrive_twice, &[Guard::Missing]),
        (
            hostile::an_extent_of_an_object_that_was_given_up_is_dropped,
            &[Guard::PrefetchReturns],
        ),
        (
            hostile::an_object_must_have_a_higher_number_than_all_before,
            &[Guard::OfferOrder],
        ),
        (
            hostile::an_object_must_not_exceed_the_limit,
            &[Guard::ObjectSize],
        ),
        (
            hostile::an_object_must_not_have_more_regions_than_frames_are_allowed,
            &[Guard::Regions],
        ),
        (
            hostile::an_object_that_was_given_up_may_still_be_spoken_of,
            &[Guard::FailsOnce],
        ),
        (
            hostile::headers_must_not_exceed_the_credit,
            &[Guard::ReceiverCredit],
        ),
        (
            hostile::nothing_is_placed_before_it_was_sent,
            &[Guard::Placed],
        ),
        (
            hostile::what_follows_a_damaged_extent_is_not_written,
            &[Guard::CorruptBegin, Guard::CorruptArrival, Guard::Checksum],
        ),
        (
            regressions::a_connection_that_never_comes_about_is_given_up,
            &[Guard::Stall, Guard::StallOpening],
        ),
        (
            regressions::a_header_that_credit_never_allows_fails,
            &[Guard::LargestHeader, Guard::CreditAway],
        ),
        (
            regressions::a_retired_stripe_that_stalls_is_given_up,
            &[Guard::StallRetired],
        ),
        (
            regressions::a_stripe_that_is_stuck_with_a_cancelled_extent_stalls,
            &[Guard::StallCancelled, Guard::Idle],
        ),
        (
            regressions::a_stripe_that_only_the_listening_side_has_may_have_carried_extents,
            &[Guard::Again, Guard::DialFailed],
        ),
        (
            regressions::a_stripe_that_was_given_up_before_it_joined_is_closed,
            &[Guard::ReportUnjoined, Guard::Buried],
        ),
        (
            regressions::an_end_leaves_the_accounts_in_order,
            &[Guard::EndAccounts],
        ),
        (
            regressions::an_object_that_arrives_damaged_again_and_again_fails,
            &[Guard::Damage],
        ),
        (
            regressions::connections_that_end_at_once_are_not_retried_at_once,
            &[Guard::LastAttempt, Guard::FailedOpening],
        ),
        (
            regressions::connections_that_fail_together_are_one_failure,
            &[Guard::Rounds, Guard::Pause],
        ),
        (
            regressions::damage_to_an_object_that_was_given_up_is_not_blamed_on_another,
            &[Guard::Blame],
        ),
        (
            regressions::stripes_that_wait_for_their_report_count,
            &[Guard::Waiting],
        ),
        (
            regressions::the_credit_that_is_certain_to_come_back_suffices,
            &[Guard::CreditReturns],
        ),
        (
            regressions::what_arrives_on_a_stripe_is_a_sign_of_life,
            &[Guard::ArrivalHeard],
        ),
        (
            regressions::what_is_asked_for_does_not_hold_up_what_may_be_fetched_ahead,
            &[Guard::Prefetch],
        ),
        (
            regressions::who_was_stopped_has_heard_no_silence,
            &[Guard::Silence],
        ),
        (
            stripes::few_stripes_stay_where_the_line_is_slow,
            &[Guard::Gain],
        ),
        (
            stripes::stripes_that_do_not_help_any_more_are_given_up_where_packets_are_dropped,
            &[Guard::Fewer],
        ),
        (
            stripes::a_stripe_that_lags_at_the_end_of_each_object_is_not_worth_it,
            &[Guard::Tail],
        ),
    ];
    let seeds = [
        (Guard::Base, 5, "an extent, which does not exist"),
        (Guard::Count, 5, "an extent, which does not exist"),
        (Guard::MissingAgain, 5, "arrived twice"),
        (Guard::OnlyMissing, 5, "arrived twice"),
        (Guard::Ping, 50, "Silent"),
        (Guard::Rotation, 5, "in the rotation"),
        (Guard::StripeLimit, 100, "the limit is"),
    ];
    let mut proved = 0;
    for &(test, guards) in tests {
        for guard in guards {
            let _missing = without(Some(guard.path()));
            assert!(catch_unwind(test).is_err(), "{guard:?} is not noticed");
            proved += 1;
        }
    }
    for (guard, count, symptom) in seeds {
        assert_noticed(guard.path(), count, &[symptom], simulate);
        proved += 1;
    }
    assert_eq!(proved, Guard::ALL.len(), "each of them is proved");
}
