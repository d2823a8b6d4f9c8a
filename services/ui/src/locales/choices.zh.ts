/** What a person chooses for this device. */
export const choicesZh = {
  'zone.local': '本机时间',
  'zone.utc': 'UTC 时间',
  'zone.button': '时区：{zone}',
  'alerts.on': '有告警时在浏览器中通知我',
  'alerts.off': '不再通知告警',
  'alerts.blocked': '浏览器设置禁止了通知',
} as const
