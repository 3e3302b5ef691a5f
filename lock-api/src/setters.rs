//! What all builders of acquisitions have in common.

/// The setters of the lease terms and of the holder, for the builder of an acquisition: inside an `impl` of a type with a field `options` of type
/// [`AcquireOptions`](crate::AcquireOptions). For authors of typed styles, so that their builders offer what all others do.
#[macro_export]
macro_rules! acquire_setters {
    () => {
        /// How long the store keeps the lease without a renewal. Defaults to the provider's, that to 30 s.
        pub fn ttl(self, ttl: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.ttl(ttl))
        }

        /// When the lease is renewed. Defaults to every third of the ttl.
        pub fn renewal(self, renewal: $crate::RenewalPolicy) -> Self {
            self.lease(|lease| lease.renewal(renewal))
        }

        /// How much earlier than the store the guard considers itself lost. Defaults to a tenth of the ttl, 1 s at most.
        pub fn safety_margin(self, margin: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.safety_margin(margin))
        }

        /// Keep the key closed for at least this long after the grant. Defaults to nothing.
        pub fn hold_at_least(self, duration: ::std::time::Duration) -> Self {
            self.lease(|lease| lease.hold_at_least(duration))
        }

        /// Who is going to hold the lock, for people. Defaults to the provider's owner.
        pub fn owner(mut self, owner: impl Into<::std::sync::Arc<str>>) -> Self {
            self.options = self.options.with_owner(owner);
            self
        }

        /// One named remark, for people, added to the provider's. Defaults to those of the provider.
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
pub(crate) use acquire_setters;
