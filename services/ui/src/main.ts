import { createPinia } from 'pinia'
import { createApp } from 'vue'
import { getSession } from './api/client'
import App from './App.vue'
import { loadLocale } from './composables/useText'
import { prefetchViews, reloadAfterUpgrade } from './lib/views'
import { router } from './router'
import './styles/tokens.css'
import './styles/base.css'
import { usePreferences } from './stores/preferences'

// The gateway takes the token of a link that it accepts out of the address; that of another one is taken out here, at once.
const linkRefused = location.pathname === '/' && new URLSearchParams(location.search).has('token')
if (linkRefused) history.replaceState(null, '', '/')

const pinia = createPinia()
await loadLocale(usePreferences(pinia).locale)
createApp(App, { linkRefused }).use(pinia).use(router).mount('#app')
reloadAfterUpgrade(router, getSession, (address) => location.assign(address))
router.isReady().then(() => prefetchViews(router), () => undefined)
