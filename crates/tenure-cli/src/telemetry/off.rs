//! Stub for builds without the feature `otel`: exports no spans.

use tracing::Subscriber;
use tracing_subscriber::Layer;

pub(crate) fn layer<S: Subscriber>() -> Option<Box<dyn Layer<S> + Send + Sync>> {
    None
}

pub(crate) fn flush() {}
