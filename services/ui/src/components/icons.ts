/** Line drawings on a 24 × 24 grid. */
export const ICONS = {
  jobs: 'M4 5h16v5H4zM4 14h16v5H4zM7.5 7.5h.01M7.5 16.5h.01',
  timeline: 'M3 6h9M8 12h11M5 18h8M3 3v18',
  health: 'M3 12h4l2.5-6 5 12 2.5-6h4',
  sun: 'M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6 19 19M5 19l1.4-1.4M17.6 6.4 19 5',
  moon: 'M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5z',
  system: 'M3 5h18v11H3zM9 20h6M12 16v4',
  keyboard: 'M2.5 6h19v12h-19zM6 10h.01M10 10h.01M14 10h.01M18 10h.01M6 14h.01M18 14h.01M9 14h6',
  language: 'M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM3 12h18M12 3c3 3 3.5 6 3.5 9s-.5 6-3.5 9c-3-3-3.500-6-3.500-9s.5-6 3.500-9z',
  search: 'M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM20 20l-4-4',
  download: 'M12 4v11M7 11l5 5 5-5M4 20h16',
  open: 'M14 4h6v6M20 4l-9 9M18 14v6H4V6h6',
  back: 'M15 5l-7 7 7 7',
  next: 'M9 5l7 7-7 7',
  close: 'M6 6l12 12M18 6L6 18',
  plus: 'M12 5v14M5 12h14',
  minus: 'M5 12h14',
  fit: 'M4 9V4h5M20 9V4h-5M4 15v5h5M20 15v5h-5',
  follow: 'M5 5l7 7-7 7M13 5l7 7-7 7',
  table: 'M4 5h16v14H4zM4 10h16M4 14.500h16M10 10v9',
  copy: 'M9 9h11v11H9zM5 15H4V4h11v1',
  warning: 'M12 4 2.500 20h19zM12 10v5M12 17.500h.01',
  check: 'M5 12.500l4.500 4.500L19 7',
} as const

export type IconName = keyof typeof ICONS
