//! What keeps a pair correct.

treadle_guards::guards! {
    /// Checks and steps that keep a pair correct.
    #[doc(hidden)]
    pub enum Guard {
        /// Objects are offered in order.
        OfferOrder,
        /// No object is larger than the limit.
        ObjectSize,
        /// No object has more regions than frames are allowed.
        Regions,
        /// The receiver takes no header beyond its credit.
        ReceiverCredit,
        /// The sender sends no header beyond its credit.
        SenderCredit,
        /// Credit comes back when an object is taken.
        CreditReturns,
        /// A header that credit never allows fails.
        LargestHeader,
        /// A quarter of the credit may stay away.
        CreditAway,
        /// No more is fetched ahead than the budget.
        Prefetch,
        /// The budget comes back when an object is gone.
        PrefetchReturns,
        /// No extent arrives twice.
        Missing,
        /// An extent that broke off is missing again.
        MissingAgain,
        /// An extent has the length that the grid gives it.
        Length,
        /// What begins after a damaged extent is dropped.
        CorruptBegin,
        /// What arrives after a damaged extent does not count.
        CorruptArrival,
        /// A damaged extent ends its stripe.
        Checksum,
        /// A report counts each extent once.
        Count,
        /// A stripe that did not join is reported.
        ReportUnjoined,
        /// A stripe that was given up does not join.
        Buried,
        /// No more stripes join than are allowed.
        Stripes,
        /// A stripe joins once.
        JoinedOnce,
        /// No more stripes are dialled for the peer than are allowed.
        Dials,
        /// No report claims more than a stripe carried.
        ReportedExtents,
        /// Every report is about a stripe that there was.
        ReportedStripe,
        /// What did not arrive is sent again.
        Again,
        /// Only what did not arrive is sent again.
        OnlyMissing,
        /// A stripe counts what it has forgotten.
        Base,
        /// An object with extents to send again is in the rotation.
        Rotation,
        /// Nothing is placed before it was sent.
        Placed,
        /// The receiver speaks of what was offered.
        SpokenOf,
        /// Nothing is sent before it is accepted.
        Accepted,
        /// What a stripe carried that the peer could not dial is sent again.
        DialFailed,
        /// A stripe without progress is given up.
        Stall,
        /// So is one that does not open.
        StallOpening,
        /// So is one that was retired.
        StallRetired,
        /// So is one that is stuck with what was cancelled.
        StallCancelled,
        /// Who has nothing to send does not stall.
        Idle,
        /// Stripes that fail together are one failure.
        Rounds,
        /// There is a pause between attempts.
        Pause,
        /// A pair without stripes ends after some failures.
        LastAttempt,
        /// A stripe that breaks while it is opened has failed.
        FailedOpening,
        /// Stripes that wait for their report count.
        Waiting,
        /// An object that is damaged again and again fails.
        Damage,
        /// Only the damaged object is blamed.
        Blame,
        /// No more stripes are tried than are allowed.
        StripeLimit,
        /// More stripes stay where they raise the rate.
        Gain,
        /// Where packets are dropped, stripes that do not help are given up.
        Fewer,
        /// What is not placed yet counts as under way.
        Tail,
        /// A pair whose peer is silent ends.
        Silence,
        /// A peer from which nothing is heard is asked.
        Ping,
        /// What arrives is a sign of life.
        ArrivalHeard,
        /// The budget is right after the end.
        EndAccounts,
        /// Nothing fails twice.
        FailsOnce,
    }
}
