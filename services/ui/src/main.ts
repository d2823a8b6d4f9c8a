import { createPinia } from 'pinia'
import { createApp } from 'vue'
import App from './App.vue'
import { loadLocale } from './composables/useText'
import { router } from './router'
import './styles/tokens.css'
import './styles/base.css'
import { usePreferences } from './stores/preferences'

// The gateway takes the token of a link that it accepts out of the address.
const linkRefused = location.pathname === '/' && new URLSearchParams(location.search).has('token')

const pinia = createPinia()
await loadLocale(usePreferences(pinia).locale)
createApp(App, { linkRefused }).use(pinia).use(router).mount('#app')
