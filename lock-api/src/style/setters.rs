//! What all builders of acquisitions have in common.

/// Defines the setters of the lease terms and of the holder on the builder of an acquisition.
///
/// Use it inside an `impl` of a type with a field `options` of type
/// [`AcquireOptions`](crate::AcquireOptions). The setters are `ttl`, `renewal`, `safety_margin`,
/// `hold_at_least`, `linger`, `max_hold`, `owner` and `metadata`.
#[macro_export]
macro_rules! acquire_setters {
    () => {
        /// Sets how long the store keeps the lease without a renewal, in whole milliseconds.
        /// Defaults to the provider's, which defaults to 30 s.
        pub fn ttl(self, ttl: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.ttl(ttl))
        }

        /// Sets when the lease is renewed. Defaults to every third of the ttl.
        pub fn renewal(self, renewal: $crate::RenewalPolicy) -> Self {
            self.lease(|lease| lease.renewal(renewal))
        }

        /// Sets how much earlier than the store the guard considers itself lost. Defaults to a
        /// tenth of the ttl, 1 s at most.
        pub fn safety_margin(self, margin: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.safety_margin(margin))
        }

        /// Keeps the key closed for at least this long after the grant, even if the guard is
        /// released earlier. Defaults to no minimum.
        pub fn hold_at_least(self, duration: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.hold_at_least(duration))
        }

        /// Keeps the lease for this long after the release, for the next acquisition of the key by
        /// the same provider. See [`LeaseOptions::linger`]($crate::LeaseOptions::linger). Defaults
        /// to the provider's, which defaults to zero.
        pub fn linger(self, duration: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.linger(duration))
        }

        /// Ends the lease this long after the request that was granted, whatever the renewals say.
        /// See [`LeaseOptions::max_hold`]($crate::LeaseOptions::max_hold). Defaults to no maximum.
        pub fn max_hold(self, duration: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.max_hold(duration))
        }

        /// Names the holder, for people. Defaults to the provider's owner.
        pub fn owner(mut self, owner: impl AsRef<str>) -> Self {
            self.options = self.options.with_owner(owner);
            self
        }

        /// Adds one named remark, for people, to the provider's remarks.
        pub fn metadata(
            mut self,
            name: impl Into<::std::string::String>,
            value: impl Into<::std::string::String>,
        ) -> Self {
            self.options = self.options.with_metadata(name, value);
            self
        }

        fn lease(mut self, change: impl FnOnce($crate::LeaseOptions) -> $crate::LeaseOptions) -> Self {
            let lease = change(self.options.lease());
            self.options = self.options.with_lease(lease);
            self
        }
    };
}

/// Defines the setters of the mode on the builder of an acquisition: `shared`, `permits` and
/// `mode`.
///
/// Use it beside [`acquire_setters!`](crate::acquire_setters).
#[macro_export]
macro_rules! mode_setters {
    () => {
        /// Acquires in [`Mode::Shared`]($crate::Mode::Shared): beside other shared guards of the
        /// key, and no others.
        pub fn shared(self) -> Self {
            self.mode($crate::Mode::Shared)
        }

        /// Acquires `take` of `of` permits of the key: [`Mode::Permits`]($crate::Mode::Permits).
        pub fn permits(self, take: u32, of: u32) -> Self {
            self.mode($crate::Mode::Permits { take, of })
        }

        /// Sets what is claimed of the key. Defaults to
        /// [`Mode::Exclusive`]($crate::Mode::Exclusive). A mode that the provider does not have is
        /// refused with [`Unsupported`]($crate::ErrorKind::Unsupported) before any I/O.
        pub fn mode(mut self, mode: $crate::Mode) -> Self {
            self.options = self.options.with_mode(mode);
            self
        }
    };
}

/// Defines the setters of the wait on the builder of an acquisition that waits: `options` and
/// `timeout`.
///
/// Use it beside [`acquire_setters!`](crate::acquire_setters).
#[macro_export]
macro_rules! wait_setters {
    () => {
        /// Replaces all options, the wait included.
        pub fn options(mut self, options: $crate::AcquireOptions) -> Self {
            self.options = options;
            self
        }

        /// Sets how long to wait, for several locks how long to wait for all of them together.
        /// Defaults to no limit. At the end of the wait the answer is an error:
        /// [`LockError::is_not_granted`](distlock_api::LockError::is_not_granted).
        pub fn timeout(mut self, timeout: ::std::time::Duration) -> Self {
            self.options = self.options.with_wait($crate::Wait::UpTo(timeout));
            self
        }
    };
}

/// Defines the setters of the wait on the builder of an acquisition that does not wait: `options`
/// and `within`.
///
/// Use it beside [`acquire_setters!`](crate::acquire_setters).
#[macro_export]
macro_rules! try_setters {
    () => {
        /// Replaces all options. A wait without an end becomes
        /// [`Wait::Try`](distlock_api::Wait::Try): this stays an attempt.
        pub fn options(mut self, options: $crate::AcquireOptions) -> Self {
            self.options = match options.wait() {
                $crate::Wait::Forever => options.with_wait($crate::Wait::Try),
                $crate::Wait::Try | $crate::Wait::UpTo(_) => options,
            };
            self
        }

        /// Sets how long to wait before the answer is that the lock is busy. Defaults to no wait.
        #[doc(alias = "timeout")]
        pub fn within(mut self, timeout: ::std::time::Duration) -> Self {
            self.options = self.options.with_wait($crate::Wait::UpTo(timeout));
            self
        }
    };
}
