//! All that is not about elections.

use async_trait::async_trait;
use tenure_core::port::StoreError;

use super::Paired;

type Answer<T> = Result<T, StoreError>;

/// Passes calls on to the keeper; in brackets, one that asks nothing of it.
macro_rules! kept {
    (impl $port:path {
        $([$plain:ident -> $said:ty])*
        $($call:ident($($name:ident: $kind:ty),*) -> $answer:ty;)*
    }) => {
        #[async_trait]
        impl $port for Paired {
            $(fn $plain(&self) -> $said {
                self.keeper.$plain()
            })*
            $(async fn $call(&self, $($name: $kind),*) -> Answer<$answer> {
                self.keeper.$call($($name),*).await
            })*
        }
    };
}

tenure_core::pass_on_work!(kept);
