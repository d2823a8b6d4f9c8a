/** What a person chooses for this device. */
export const choicesEn = {
  'zone.local': 'Times of this device',
  'zone.utc': 'Times in UTC',
  'zone.button': 'Time zone: {zone}',
  'alerts.on': 'Notify me of findings that alert',
  'alerts.off': 'Stop notifying me of findings',
  'alerts.blocked': 'Notifications are blocked in this browser’s settings',
} as const
