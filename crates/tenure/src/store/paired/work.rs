//! Everything except elections: calls that go to the data store.

use async_trait::async_trait;
use tenure_core::port::StoreError;

use super::PairedStore;

type StoreResult<T> = Result<T, StoreError>;

/// Forwards calls to the data store. Methods in brackets are not async.
macro_rules! in_data_store {
    (impl $port:path {
        $([$sync_method:ident -> $value:ty])*
        $($call:ident($($name:ident: $kind:ty),*) -> $output:ty;)*
    }) => {
        #[async_trait]
        impl $port for PairedStore {
            $(fn $sync_method(&self) -> $value {
                self.data_store.$sync_method()
            })*
            $(async fn $call(&self, $($name: $kind),*) -> StoreResult<$output> {
                self.data_store.$call($($name),*).await
            })*
        }
    };
}

tenure_core::pass_on_work!(in_data_store);
