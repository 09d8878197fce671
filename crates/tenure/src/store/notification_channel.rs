//! Notifications from a background task.

use async_trait::async_trait;
use tenure_core::port::{Notification, NotificationSource};
use tokio::sync::mpsc;

/// Receives notifications from a background task. The task ends when this value is dropped.
pub(crate) struct ChannelNotificationSource(pub(crate) mpsc::Receiver<Notification>);

#[async_trait]
impl NotificationSource for ChannelNotificationSource {
    async fn next(&mut self) -> Option<Notification> {
        self.0.recv().await
    }
}
