//! The methods that a wrapper passes on to the provider inside.

/// Defines methods of [`LockProvider`](crate::LockProvider) that call the provider inside.
///
/// Use it inside an `impl LockProvider for …`. Name the methods, out of `acquire_now`,
/// `capabilities`, `accounting`, `admin` and `close`; write out the others.
///
/// ```
/// use distlock_api::{AcquireOptions, Acquired, LockError, LockKey, LockProvider, async_trait, delegate_provider};
///
/// #[derive(Debug)]
/// struct Logged<P>(P);
///
/// impl<P: LockProvider> std::fmt::Display for Logged<P> {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         write!(f, "Logged({})", self.0)
///     }
/// }
///
/// #[async_trait]
/// impl<P: LockProvider> LockProvider for Logged<P> {
///     async fn acquire_with(&self, key: LockKey, options: AcquireOptions) -> Result<Acquired, LockError> {
///         println!("acquiring {key}");
///         self.0.acquire_with(key, options).await
///     }
///
///     delegate_provider!(this => this.0; capabilities, accounting, admin, close);
/// }
/// ```
#[macro_export]
macro_rules! delegate_provider {
    (@acquire_now $this:ident => $inner:expr) => {
        fn acquire_now(
            &self,
            key: &$crate::LockKey,
            options: &$crate::AcquireOptions,
        ) -> ::std::option::Option<$crate::Result<$crate::Acquired>> {
            let $this = self;
            $inner.acquire_now(key, options)
        }
    };
    (@capabilities $this:ident => $inner:expr) => {
        fn capabilities(&self) -> $crate::Capabilities {
            let $this = self;
            $inner.capabilities()
        }
    };
    (@accounting $this:ident => $inner:expr) => {
        fn accounting(&self) -> $crate::Accounting {
            let $this = self;
            $inner.accounting()
        }
    };
    (@admin $this:ident => $inner:expr) => {
        fn admin(&self) -> ::std::option::Option<&dyn $crate::LockAdmin> {
            let $this = self;
            $inner.admin()
        }
    };
    // Written out, because `async_trait` does not look into macros.
    (@close $this:ident => $inner:expr) => {
        fn close<'life0, 'async_trait>(
            &'life0 self,
        ) -> ::std::pin::Pin<
            ::std::boxed::Box<dyn ::std::future::Future<Output = $crate::Result<()>> + ::std::marker::Send + 'async_trait>,
        >
        where
            'life0: 'async_trait,
            Self: 'async_trait,
        {
            let $this = self;
            $inner.close()
        }
    };
    ($this:ident => $inner:expr; $($method:ident),+ $(,)?) => {
        $($crate::delegate_provider!(@$method $this => $inner);)+
    };
}
