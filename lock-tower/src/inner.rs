//! Access to the service that another one wraps.

/// The accessors of a type with a field `inner: S`.
macro_rules! inner_accessors {
    () => {
        /// Returns the wrapped service.
        pub fn get_ref(&self) -> &S {
            &self.inner
        }

        /// Returns the wrapped service.
        pub fn get_mut(&mut self) -> &mut S {
            &mut self.inner
        }

        /// Returns the wrapped service, without the wrapper.
        pub fn into_inner(self) -> S {
            self.inner
        }
    };
}
pub(crate) use inner_accessors;

/// Gives back a readiness of the inner service that is not used: it belongs to the instance that
/// was ready.
pub(crate) fn give_back<S: Clone>(inner: &mut S) {
    *inner = inner.clone();
}
